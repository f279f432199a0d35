package admin

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// A document has the settings of a destination as clients send them; see config.ParseDestination.
type document = map[string]any

// edit passes the document of a destination to the function change, stores the result, and logs what
// was done, and by whom. The function change gets nil for a destination that does not exist, which
// edit refuses if must is true. It returns nil to delete a destination. edit refuses to change
// destinations of the configuration file.
func (q *request) edit(what string, must bool, change func(document) (document, error)) error {
	id, by := q.PathValue("destination"), q.param(api.ParamBy)
	if len(by) > 255 || strings.ContainsFunc(by, unicode.IsControl) {
		return badRequest(api.ParamBy, "want up to 255 bytes without control characters")
	}
	version, err := q.number(api.ParamVersion, 0, math.MaxUint64, "the version of the destination, 0 if there is no such destination")
	if err != nil {
		return err
	}
	address, _, _ := net.SplitHostPort(q.RemoteAddr)
	if by == "" {
		by = address
	}
	if d := q.config.Settings().Destination(id); d != nil && d.Stored == nil {
		return conflict("", "the configuration of the server names %q: change it there", id)
	}
	err = wrongDocument("", q.config.Stored.Change(q.Context(), id, by, version, func(d document) (document, error) {
		if d == nil && must {
			return nil, noDestination(id)
		}
		return change(d)
	}))
	if err != nil {
		return err
	}
	q.config.Logger.Info("a destination was "+what, "destination", id, "by", by, "address", address)
	return nil
}

// writeDestination creates or replaces a destination; the body is its document. With the method PATCH
// it changes the keys that are in the body, where null resets a key to its default.
func writeDestination(q *request, body *document) (any, error) {
	if given, ok := (*body)["id"]; ok && given != q.PathValue("destination") {
		return nil, badRequest("id", "id differs from the id in the path")
	}
	delete(*body, "id")
	patch, what := q.Method == http.MethodPatch, "set"
	if patch {
		what = "changed"
	}
	return q.editAndShow(what, patch, func(old document) (document, error) {
		d := maps.Clone(*body)
		if patch {
			d = patched(old, *body)
		}
		return d, q.checkDocument(d, old == nil)
	})
}

// editAndShow answers with the destination after edit.
func (q *request) editAndShow(what string, must bool, change func(document) (document, error)) (any, error) {
	if err := q.edit(what, must, change); err != nil {
		return nil, err
	}
	return getDestination(q)
}

// checkDocument refuses a document that names a source which the settings in use lack. It refuses a
// new destination if there are config.MaxDestinations already. Package config checks the rest.
func (q *request) checkDocument(d document, isNew bool) error {
	settings := q.config.Settings()
	list, ok := d["sources"].([]any)
	if !ok {
		return badRequest("sources", "sources is required: the names of the sources whose calls the destination gets, or []")
	}
	for i, name := range list {
		if name, ok := name.(string); !ok || settings.Source(name) == nil {
			return badRequest("sources", "sources[%d] is not the name of a source; %q is one", i, settings.Sources[0].Name)
		}
	}
	if isNew && len(settings.Destinations) >= config.MaxDestinations {
		return conflict("", "there are %d destinations, the limit", config.MaxDestinations)
	}
	return nil
}

func deleteDestination(q *request) (any, error) {
	if err := q.edit("deleted", true, func(document) (document, error) { return nil, nil }); err != nil {
		return nil, err
	}
	return q.discardWaiting(q.PathValue("destination"))
}

// discardWaiting discards what waits for destinations that were deleted, unless the request asks to
// keep it. The answer says how many it has discarded.
func (q *request) discardWaiting(ids ...string) (any, error) {
	if q.param(api.ParamWaiting) == api.WaitingKeep {
		return api.Changed{}, nil
	}
	p, err := q.config.Forwarder.DiscardWaiting(q.Context(), ids...)
	if err != nil {
		return nil, fmt.Errorf("it is deleted, but not all deliveries that wait for it: %w", err)
	}
	return api.Changed(p), nil
}

// addSecret adds a new secret for Standard Webhooks. The older secrets stay valid, so that
// receivers have time to change to the new one.
func addSecret(q *request) (any, error) {
	secret := signature.NewStandardSecret()
	var valid int
	err := q.edit("given another secret", true, func(d document) (document, error) {
		before, _ := d["standardSecrets"].([]any)
		if len(before) >= webhook.MaxStandardSecrets {
			return nil, conflict("", "%d secrets are valid, the limit: forget the old ones first", len(before))
		}
		d["standardSecrets"] = append([]any{secret.Reveal()}, before...)
		valid = len(before) + 1
		return d, nil
	})
	return api.NewSecret{Secret: secret.Reveal(), Valid: valid}, err
}

// dropSecrets removes all secrets for Standard Webhooks except the newest, which is the first.
func dropSecrets(q *request) (any, error) {
	return q.editAndShow("left with its newest secret", true, func(d document) (document, error) {
		if all, _ := d["standardSecrets"].([]any); len(all) > 1 {
			d["standardSecrets"] = all[:1]
		}
		return d, nil
	})
}

// wrongDocument converts an error of package config about a document to an answer. The field of the
// answer is the first wrong key, and its message lists all wrong keys. The prefix at is "document."
// if the document is in that field of the request, and "" if it is the body. Other errors are
// returned unchanged.
func wrongDocument(at string, err error) error {
	wrong, ok := errors.AsType[*config.Error](err)
	if !ok {
		return err
	}
	field := func(p config.Problem) string { return strings.TrimSuffix(at+p.Key, ".") }
	said := make([]string, len(wrong.Problems))
	for i, p := range wrong.Problems {
		said[i] = field(p) + " " + p.Text
	}
	return badRequest(field(wrong.Problems[0]), "%s", strings.Join(said, "; "))
}

func settingsOf(d *config.Destination, sources []config.Source) *api.DestinationSettings {
	s := &api.DestinationSettings{Settings: d.Settings, Sources: []string{}, StandardSecrets: len(d.StandardSecrets)}
	for _, source := range sources {
		if slices.Contains(source.Destinations, d.ID) {
			s.Sources = append(s.Sources, source.Name)
		}
	}
	return s
}
