package tenants

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/webhook"
)

const maxTenant = 128 // bytes of a tenant's id

// A Tenant is a customer who has destinations.
type Tenant struct {
	ID       string `json:"id"`             // 1 to 128 visible ASCII characters, but no slash
	Name     string `json:"name,omitempty"` // for people, up to 255 bytes
	Disabled bool   `json:"disabled,omitempty"`
	// Deleting says that DeleteTenant has begun, but has not removed all destinations yet.
	Deleting bool     `json:"deleting,omitempty"`
	Version  uint64   `json:"version,omitempty,string"` // grows with each change
	Changes  []Change `json:"changes,omitempty"`        // the latest ten, the newest first
}

// CreateTenant stores a tenant; its Version is zero. If there is one with this ID, the error is an
// ErrConflict. The argument by names the author of the change, in all methods that have it.
func (d *Directory) CreateTenant(ctx context.Context, t Tenant, by string) (Tenant, error) {
	t.Changes, t.Deleting = nil, false
	created, err := d.saveTenant(ctx, t, by, "created")
	if errors.Is(err, ErrConflict) {
		err = existing(t.ID)
	}
	return created, err
}

// existing is the ErrConflict of CreateTenant: the id of the tenant that exists.
type existing string

func (id existing) Error() string {
	return fmt.Sprintf("tenants: there is a tenant %q already", string(id))
}

// Is makes existing an ErrConflict for errors.Is.
func (existing) Is(target error) bool { return target == ErrConflict }

// Tenant returns a tenant, or ErrUnknown.
func (d *Directory) Tenant(ctx context.Context, id string) (t Tenant, err error) {
	if problem := tenantProblem(id); problem != "" {
		return t, ErrUnknown
	}
	held, err := d.reader.Document(ctx, tenantFolder, id)
	err = get(held, err, &t)
	t.ID, t.Version = id, held.Version
	return t, err
}

// Tenants yields the tenants whose ids are greater than after, in the order of their ids. What a page
// costs does not depend on how many tenants there are, except in NATS, which reads all of them.
func (d *Directory) Tenants(ctx context.Context, after string) iter.Seq2[Tenant, error] {
	return func(yield func(Tenant, error) bool) {
		for held, err := range d.reader.Documents(ctx, tenantFolder, after) {
			var t Tenant
			err = get(held, err, &t)
			if t.ID, t.Version = held.Name, held.Version; !yield(t, err) {
				return
			}
		}
	}
}

// UpdateTenant replaces the settings of a tenant that has the version t.Version. While a tenant is
// disabled, its deliveries wait.
func (d *Directory) UpdateTenant(ctx context.Context, t Tenant, by string) (Tenant, error) {
	old, err := d.Tenant(ctx, t.ID)
	if err != nil {
		return Tenant{}, err
	}
	if old.Version != t.Version || old.Deleting {
		return Tenant{}, ErrConflict
	}
	t.Changes, t.Deleting = old.Changes, false
	changed := differences(old, t)
	if changed == nil {
		return old, nil
	}
	return d.saveTenant(ctx, t, by, "changed "+strings.Join(changed, ", "))
}

// DeleteTenant deletes a tenant with all its tokens, links and destinations. If it fails half-way, the
// tenant has no destination any more for the forwarder; call DeleteTenant again.
func (d *Directory) DeleteTenant(ctx context.Context, id, by string) error {
	t, err := d.Tenant(ctx, id)
	if err != nil {
		return err
	}
	if !t.Deleting { // from now on, Create undoes what it has begun
		t.Deleting = true
		if t, err = d.saveTenant(ctx, t, by, "deleted"); err != nil {
			return err
		}
	}
	for held, err := range d.store.Documents(ctx, folderOf(id), "") {
		if err == nil {
			err = webhook.RemovePause(ctx, d.store, id+"/"+held.Name)
		}
		if err != nil {
			return err
		}
	}
	for _, folder := range []string{tokensOf(id), folderOf(id)} {
		if err := d.clear(ctx, folder); err != nil {
			return err
		}
	}
	if err := d.removeLinkKey(ctx, id); err != nil {
		return err
	}
	if _, err = d.set(ctx, tenantFolder, id, t.Version, nil); err == nil {
		d.config.Logger.Info("tenants: a tenant was deleted", "tenant", id, "by", by)
	}
	return err
}

func (d *Directory) saveTenant(ctx context.Context, t Tenant, by, what string) (Tenant, error) {
	var wrong check.Faults
	wrong.Add("ID", tenantProblem(t.ID))
	checkText(&wrong, "Name", t.Name)
	checkText(&wrong, "by", by)
	if err := refused(wrong); err != nil {
		return Tenant{}, err
	}
	t.Changes = note(t.Changes, by, what)
	stored := t
	stored.ID, stored.Version = "", 0 // the document has them
	var err error
	t.Version, err = d.set(ctx, tenantFolder, t.ID, t.Version, stored)
	return t, err
}

// tenantProblem says what is wrong with the id of a tenant, "" if nothing is.
func tenantProblem(id string) string {
	odd := func(c rune) bool { return c <= ' ' || c > '~' || c == '/' }
	if id == "" || len(id) > maxTenant || strings.ContainsFunc(id, odd) {
		return "is not 1 to 128 visible ASCII characters without a slash"
	}
	return ""
}

// taken returns nil if a tenant may get destinations, and otherwise ErrUnknown.
func (d *Directory) taken(ctx context.Context, tenant string) error {
	t, err := d.Tenant(ctx, tenant)
	if err == nil && t.Deleting {
		err = ErrUnknown
	}
	return err
}
