package tenants

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/signature"
)

const (
	linkPrefix  = "hfl_"
	linkFolder  = "tenant-link" // has a document for each tenant with links, under its id: the key that signs them
	linkKeySize = 32            // bytes

	// MaxLinkTime is the longest time that a Link may be given.
	MaxLinkTime = 24 * time.Hour
)

// A Link lets everybody who has its text act for one tenant, under one name, until it ends. The
// store keeps nothing of a link: the text says what the link is for, and is signed with a key of
// the tenant.
type Link struct {
	Tenant string    `json:"tenant"`
	Actor  string    `json:"actor"` // who it is for, in up to 255 bytes, for the log of changes
	Ends   time.Time `json:"ends"`
}

// A linkKey is the document with the key of a tenant's links.
type linkKey struct {
	Key []byte `json:"key"`
}

// CreateLink makes a link for a time of up to MaxLinkTime. Errors are a *webhook.ConfigError, and
// ErrUnknown for the tenant.
func (d *Directory) CreateLink(ctx context.Context, tenant, actor string, lasts time.Duration) (Link, signature.Secret, error) {
	var wrong check.Faults
	checkText(&wrong, "Actor", actor)
	wrong.Refuse(lasts < time.Second || lasts > MaxLinkTime, "Ends", "is after %v; 1s to %v are allowed", lasts, MaxLinkTime)
	if err := refused(wrong); err != nil {
		return Link{}, "", err
	}
	key, err := d.linkKey(ctx, tenant)
	if err != nil {
		return Link{}, "", err
	}
	l := Link{tenant, actor, time.Now().UTC().Add(lasts).Truncate(time.Second)}
	what, err := json.Marshal(l)
	if err != nil {
		return Link{}, "", err
	}
	text := linkPrefix + base64.RawURLEncoding.EncodeToString(what)
	return l, signature.Secret(text + "." + signLink(key, text)), nil
}

// linkKey returns the key of a tenant's links. It makes one if there is none.
func (d *Directory) linkKey(ctx context.Context, tenant string) ([]byte, error) {
	if err := d.taken(ctx, tenant); err != nil {
		return nil, err
	}
	if key, err := d.readLinkKey(ctx, tenant); !errors.Is(err, ErrUnknown) {
		return key, err
	}
	k := linkKey{make([]byte, linkKeySize)}
	_, _ = rand.Read(k.Key) // never fails
	version, err := d.set(ctx, linkFolder, tenant, 0, k)
	if errors.Is(err, ErrConflict) { // another call has made one meanwhile
		return d.readLinkKey(ctx, tenant)
	}
	if err == nil {
		err = d.undo(ctx, d.taken(ctx, tenant), linkFolder, tenant, version)
	}
	return k.Key, err
}

func (d *Directory) readLinkKey(ctx context.Context, tenant string) ([]byte, error) {
	var k linkKey
	held, err := d.reader.Document(ctx, linkFolder, tenant)
	err = get(held, err, &k)
	return k.Key, err
}

func signLink(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// CheckLink returns the link with a text. ErrUnknown says that it has ended, was revoked, or never was.
// It reads one document, so links that were revoked are refused at once.
func (d *Directory) CheckLink(ctx context.Context, text string) (Link, error) {
	signed, sum, _ := strings.Cut(text, ".")
	encoded, ours := strings.CutPrefix(signed, linkPrefix)
	what, err := base64.RawURLEncoding.DecodeString(encoded)
	var l Link
	if !ours || err != nil || json.Unmarshal(what, &l) != nil || tenantProblem(l.Tenant) != "" {
		return Link{}, ErrUnknown
	}
	key, err := d.readLinkKey(ctx, l.Tenant)
	if err != nil {
		return Link{}, err
	}
	if !hmac.Equal([]byte(signLink(key, signed)), []byte(sum)) || !time.Now().Before(l.Ends) {
		return Link{}, ErrUnknown
	}
	return l, nil
}

// RevokeLinks ends all links of a tenant: it removes the key that has signed them.
func (d *Directory) RevokeLinks(ctx context.Context, tenant, by string) error {
	if err := d.taken(ctx, tenant); err != nil {
		return err
	}
	if err := d.removeLinkKey(ctx, tenant); err != nil {
		return err
	}
	d.config.Logger.Info("tenants: all links of a tenant were revoked", "tenant", tenant, "by", by)
	return nil
}

func (d *Directory) removeLinkKey(ctx context.Context, tenant string) error {
	held, err := d.reader.Document(ctx, linkFolder, tenant)
	if err != nil || held.Version == 0 {
		return err
	}
	_, err = d.set(ctx, linkFolder, tenant, held.Version, nil)
	return err
}
