package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
)

// A document has settings as clients send them; see config.Document.
type document = map[string]any

// changeTime bounds the reads and writes of a change. The end of a request does not interrupt them, so
// a client that disconnects need not wonder whether its change was made.
const changeTime = 10 * time.Second

// edit passes the settings of a destination in the store, and their secrets, to the function change,
// stores them, and logs what was done, and by whom. If another server changes the destination
// meanwhile, edit repeats all of that. If must is true, the destination must exist. edit refuses to
// change destinations of the configuration file.
func (q *request) edit(what string, must bool, change func(*tenants.Destination, *tenants.Secrets) error) error {
	return q.editBy(what, must, func(ctx context.Context, d tenants.Destination, s tenants.Secrets) error {
		err := change(&d, &s)
		if err == nil {
			_, err = q.handler.config.Tenants.Put(ctx, d, s, q.by())
		}
		return err
	})
}

// editBy is edit with a function that stores the change.
func (q *request) editBy(what string, must bool, store func(context.Context, tenants.Destination, tenants.Secrets) error) error {
	id := q.http.PathValue("destination")
	version, err := q.number(api.ParamVersion, 0, math.MaxUint64, "the version of the destination, 0 if there is no such destination")
	if err != nil {
		return err
	}
	if q.handler.config.Settings().Destination(id) != nil {
		return conflict("", "the configuration of the server names %q: change it there", id)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.http.Context()), changeTime)
	defer cancel()
	err = tenants.ErrConflict
	for errors.Is(err, tenants.ErrConflict) {
		d, s, failed := q.handler.config.Tenants.Secrets(ctx, id)
		switch {
		case must && (errors.Is(failed, tenants.ErrUnknown) || d.Tenant != ""):
			return noDestination(id)
		case failed != nil && !errors.Is(failed, tenants.ErrUnknown) && !errors.Is(failed, tenants.ErrUnreadable):
			return failed
		case version != nil && *version != d.Version:
			return tenants.ErrConflict
		}
		d.ID = id
		err = store(ctx, d, s)
	}
	if err != nil {
		return err
	}
	q.changed("", id)
	address, _, _ := net.SplitHostPort(q.http.RemoteAddr)
	q.handler.config.Logger.Info("a destination was "+what, "destination", id, "by", q.by(), "address", address)
	return nil
}

// writeDestination creates or replaces a destination; the body is its document. With the method PATCH
// it changes the keys that are in the body, where null resets a key to its default.
func writeDestination(q *request, body *document) (any, error) {
	if given, ok := (*body)["id"]; ok && given != q.http.PathValue("destination") {
		return nil, badRequest("id", "id differs from the id in the path")
	}
	delete(*body, "id")
	patch, what := q.http.Method == http.MethodPatch, "set"
	if patch {
		what = "changed"
	}
	return q.editAndShow(what, patch, func(d *tenants.Destination, s *tenants.Secrets) error {
		var whole config.Document
		if patch {
			whole = config.Document{Name: d.Name, Settings: d.Settings, Sources: d.Sources, Secrets: *s}
		}
		if patch && len(d.Endpoints) > 0 && d.Sources == nil { // it is readable, and without sources
			whole.Sources = []string{}
		}
		if _, err := q.readDocument(d.ID, *body, &whole); err != nil {
			return err
		}
		d.Name, d.Settings, d.Sources, *s = whole.Name, whole.Settings, whole.Sources, whole.Secrets
		return q.checkSources(d.Sources)
	})
}

// readDocument changes the settings in whole that a document has, and returns the destination with the id
// that the forwarder would get. The error has everything that is wrong.
func (q *request) readDocument(id string, changes document, whole *config.Document) (webhook.Destination, error) {
	err := config.Parse(changes, whole)
	made, wrong := q.handler.config.Tenants.Check(tenants.Destination{ID: id, Name: whole.Name, Settings: whole.Settings}, whole.Secrets)
	return made, errors.Join(err, wrong)
}

// editAndShow answers with the destination after edit.
func (q *request) editAndShow(what string, must bool, change func(*tenants.Destination, *tenants.Secrets) error) (any, error) {
	if err := q.edit(what, must, change); err != nil {
		return nil, err
	}
	shown, err := getDestination(q)
	if err != nil {
		err = fmt.Errorf("it is %s, but cannot be read now: %w", what, err)
	}
	return shown, err
}

// checkSources refuses a name twice, and one that no source of the settings in use has. A document must
// say that a destination gets the calls of none.
func (q *request) checkSources(names []string) error {
	settings := q.handler.config.Settings()
	if names == nil {
		return badRequest("sources", "sources is required: the names of the sources whose calls the destination gets, or []")
	}
	for i, name := range names {
		if settings.Source(name) == nil || slices.Contains(names[:i], name) {
			return badRequest("sources", "sources[%d] is not the name of a source, or is given twice; %q is one", i, settings.Sources[0].Name)
		}
	}
	return nil
}

func deleteDestination(q *request) (any, error) {
	err := q.editBy("deleted", true, func(ctx context.Context, d tenants.Destination, _ tenants.Secrets) error {
		return q.handler.config.Tenants.Delete(ctx, d.ID, d.Version, q.by())
	})
	if err != nil {
		return nil, err
	}
	return q.discardWaiting(q.http.PathValue("destination"))
}

// discardWaiting discards what waits for destinations that were deleted, unless the request asks to
// keep it. The answer says how many it has discarded.
func (q *request) discardWaiting(ids ...string) (any, error) {
	if q.param(api.ParamWaiting) == api.WaitingKeep {
		return api.Changed{}, nil
	}
	p, err := q.handler.config.Forwarder.DiscardWaiting(q.http.Context(), ids...)
	if err != nil {
		return nil, fmt.Errorf("it is deleted, but not all deliveries that wait for it: %w", err)
	}
	return api.Changed(p), nil
}

// addSecret adds a new secret for Standard Webhooks. The older secrets stay valid, so that
// receivers have time to change to the new one.
func addSecret(q *request) (any, error) {
	made := api.NewSecret{Secret: signature.NewStandardSecret().Reveal()}
	err := q.edit("given another secret", true, func(_ *tenants.Destination, s *tenants.Secrets) error {
		if n := len(s.StandardSecrets); n >= webhook.MaxStandardSecrets {
			return conflict("", "%d secrets are valid, the limit: forget the old ones first", n)
		}
		s.StandardSecrets = slices.Insert(s.StandardSecrets, 0, signature.Secret(made.Secret))
		made.Valid = len(s.StandardSecrets)
		return nil
	})
	return made, err
}

// dropSecrets removes all secrets for Standard Webhooks except the newest, which is the first.
func dropSecrets(q *request) (any, error) {
	return q.editAndShow("left with its newest secret", true, func(_ *tenants.Destination, s *tenants.Secrets) error {
		s.StandardSecrets = s.StandardSecrets[:min(len(s.StandardSecrets), 1)]
		return nil
	})
}

// wrongDocument converts an error about settings to an answer. The field of the answer is the first
// wrong key, and its message lists all wrong keys. The prefix at is "document." if the settings are in
// that field of the request, and "" if they are the body. Other errors are returned unchanged.
func wrongDocument(at string, err error) error {
	var keys, said []string
	add := func(key, text string) {
		keys, said = append(keys, key), append(said, strings.TrimSuffix(at+key, ".")+" "+text)
	}
	var find func(error)
	find = func(err error) {
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range all.Unwrap() {
				find(err)
			}
		} else if read, ok := errors.AsType[*config.Error](err); ok {
			for _, p := range read.Problems {
				add(p.Key, p.Text)
			}
		} else if fault, ok := errors.AsType[*webhook.ConfigError](err); ok {
			key := config.KeyOf(fault.Field)
			unread := func(k string) bool { return key == k || strings.HasPrefix(key, k+".") || strings.HasPrefix(key, k+"[") }
			if !slices.ContainsFunc(keys, unread) { // the value could be read
				add(key, fault.Problem)
			}
		}
	}
	if find(err); keys == nil {
		return err
	}
	return badRequest(strings.TrimSuffix(at+keys[0], "."), "%s", strings.Join(said, "; "))
}
