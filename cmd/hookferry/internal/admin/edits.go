package admin

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/stored"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// edits serves changes of destinations: those that the settings name are left alone.
type edits struct{ *Handler }

// An edit makes the new document of a destination of the one that it has, which is nil for one
// that is not there. It returns nil to delete it.
type edit func(document map[string]any) (map[string]any, error)

// do changes a destination, and logs who did what. The query has ?by= and ?version=, and was
// read so far.
func (h edits) do(r *http.Request, q *query, what string, change edit) error {
	id, by := r.PathValue("destination"), q.text(api.ParamBy)
	if len(by) > 255 || strings.ContainsFunc(by, unicode.IsControl) {
		q.fail(api.ParamBy, "want up to 255 bytes without control characters")
	}
	var version *uint64
	if text := q.text(api.ParamVersion); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			q.fail(api.ParamVersion, "want the version of the destination, 0 for one that is not there")
		}
		version = &n
	}
	if q.err != nil {
		return q.err
	}
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	if by == "" {
		by = address
	}
	if d := h.config.Settings().Destination(id); d != nil && d.Stored == nil {
		return refuse(api.CodeConflict, http.StatusConflict, "", "the configuration of the server names %q: change it there", id)
	}
	err := h.config.Stored.Change(r.Context(), id, by, version, change)
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		return wrongDocument("", wrong)
	case errors.Is(err, stored.ErrConflict):
		return refuse(api.CodeConflict, http.StatusConflict, api.ParamVersion, "%v", err)
	case errors.Is(err, stored.ErrTooLarge):
		return refuse(api.CodeTooLarge, http.StatusRequestEntityTooLarge, "", "%v", err)
	case err != nil:
		return err
	}
	h.config.Logger.Info("a destination was "+what, "destination", id, "by", by, "address", address)
	return nil
}

// known returns an edit of a destination that is there.
func (h edits) ofOne(r *http.Request, change edit) edit {
	return func(document map[string]any) (map[string]any, error) {
		if document == nil {
			return nil, notFound("there is no destination %q", r.PathValue("destination"))
		}
		return change(document)
	}
}

// replace makes a destination, or replaces one, by the document in the body.
func (h edits) replace(w http.ResponseWriter, r *http.Request) error {
	return h.write(w, r, "set", func(_, document map[string]any) (map[string]any, error) { return document, nil })
}

// change changes the keys that are in the body. One that is null gets its default.
func (h edits) change(w http.ResponseWriter, r *http.Request) error {
	return h.write(w, r, "changed", func(old, document map[string]any) (map[string]any, error) {
		if old == nil {
			return nil, notFound("there is no destination %q", r.PathValue("destination"))
		}
		maps.Copy(old, document)
		maps.DeleteFunc(old, func(_ string, value any) bool { return value == nil })
		return old, nil
	})
}

// write makes a new document of the old one and of the body.
func (h edits) write(w http.ResponseWriter, r *http.Request, what string, merge func(old, document map[string]any) (map[string]any, error)) error {
	q := queryOf(r, api.ParamBy, api.ParamVersion)
	if q.err != nil {
		return q.err
	}
	var document map[string]any
	if err := readJSON(w, r, &document); err != nil {
		return err
	}
	id := r.PathValue("destination")
	if given, ok := document["id"]; ok && given != id {
		return badRequest("id", "id is not that of the path")
	}
	delete(document, "id")
	if err := h.do(r, q, what, func(old map[string]any) (map[string]any, error) {
		next, err := merge(old, maps.Clone(document))
		if err == nil {
			err = h.check(old == nil, next)
		}
		return next, err
	}); err != nil {
		return err
	}
	return destinations(h).answer(w, r, id)
}

// check checks what depends on the settings.
func (h edits) check(isNew bool, document map[string]any) error {
	settings := h.config.Settings()
	list, ok := document["sources"].([]any)
	if !ok {
		return badRequest("sources", "sources is required: the names of those whose calls it gets, or []")
	}
	for i, name := range list {
		if !slices.ContainsFunc(settings.Sources, func(s config.Source) bool { return s.Name == name }) {
			return badRequest("sources", "sources[%d] is no source of the server; %q is one", i, settings.Sources[0].Name)
		}
	}
	if isNew && len(settings.Destinations) >= config.MaxDestinations {
		return refuse(api.CodeConflict, http.StatusConflict, "", "there are %d destinations, the limit", config.MaxDestinations)
	}
	return nil
}

// What becomes of what waits for a destination that is deleted.
var whatWaits = map[string]webhook.Change{api.WaitingKeep: 0, api.WaitingDiscard: webhook.Discarded}

// delete deletes a destination.
func (h edits) delete(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamBy, api.ParamVersion, api.ParamWaiting)
	change, ok := whatWaits[q.required(api.ParamWaiting)]
	if !ok {
		q.fail(api.ParamWaiting, "waiting is not one of %s", strings.Join(api.WaitingChoices, ", "))
	}
	if err := h.do(r, q, "deleted", h.ofOne(r, func(map[string]any) (map[string]any, error) { return nil, nil })); err != nil {
		return err
	}
	var became api.Changed
	if change == webhook.Discarded {
		var err error
		filter := webhook.WaitingFilter{Destination: r.PathValue("destination")}
		if became.Changed, became.Claimed, err = h.config.Forwarder.ChangeWaiting(r.Context(), filter, webhook.Discarded); err != nil {
			return fmt.Errorf("the destination is deleted, but not what waits for it: %w", err)
		}
	}
	return writeJSON(w, http.StatusOK, became)
}

// addSecret makes a secret for Standard Webhooks that is valid beside those there are, so that
// receivers may move to it.
func (h edits) addSecret(w http.ResponseWriter, r *http.Request) error {
	secret := signature.NewStandardSecret()
	var valid int
	err := h.do(r, queryOf(r, api.ParamBy, api.ParamVersion), "given another secret", h.ofOne(r, func(document map[string]any) (map[string]any, error) {
		before, _ := document["standardSecrets"].([]any)
		if len(before) >= webhook.MaxStandardSecrets {
			return nil, refuse(api.CodeConflict, http.StatusConflict, "", "%d secrets are valid, the limit: forget the old ones first", len(before))
		}
		document["standardSecrets"] = append([]any{secret.Reveal()}, before...)
		valid = len(before) + 1
		return document, nil
	}))
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	return writeJSON(w, http.StatusOK, api.NewSecret{Secret: secret.Reveal(), Valid: valid})
}

// dropSecrets forgets all secrets for Standard Webhooks but the first, which is the newest.
func (h edits) dropSecrets(w http.ResponseWriter, r *http.Request) error {
	err := h.do(r, queryOf(r, api.ParamBy, api.ParamVersion), "left with its newest secret", h.ofOne(r, func(document map[string]any) (map[string]any, error) {
		if all, _ := document["standardSecrets"].([]any); len(all) > 1 {
			document["standardSecrets"] = all[:1]
		}
		return document, nil
	}))
	if err != nil {
		return err
	}
	return destinations(h).answer(w, r, r.PathValue("destination"))
}

// storedOf says who changed a destination, nil if the settings name it.
func storedOf(d *config.Destination) *api.Stored {
	if d.Stored == nil {
		return nil
	}
	return &api.Stored{Changed: d.Stored.Changed, By: d.Stored.By, Version: strconv.FormatUint(d.Stored.Version, 10)}
}

// settingsOf returns the settings of a destination that are shown to whoever asks for it alone.
func settingsOf(d *config.Destination, sources []config.Source) *api.DestinationSettings {
	s := &api.DestinationSettings{
		Sources: []string{}, Timeout: spelled(d.Timeout), Window: spelled(d.Window), Schedule: d.Schedule, NetHTTP: d.NetHTTP,
		MaxConcurrent: d.MaxConcurrent, MaxRate: d.MaxRate, MaxBurst: d.MaxBurst, StandardSecrets: len(d.StandardSecrets),
	}
	if len(d.Filter.Include)+len(d.Filter.Exclude) > 0 {
		s.Filter = &api.Filter{Include: d.Filter.Include, Exclude: d.Filter.Exclude}
	}
	for _, source := range sources {
		if slices.Contains(source.Destinations, d.ID) {
			s.Sources = append(s.Sources, source.Name)
		}
	}
	return s
}

// spelled is a time as a document has it, "" for none.
func spelled(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}
