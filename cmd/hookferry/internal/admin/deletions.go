package admin

import (
	"context"
	"crypto/rand"
	"iter"
	"net/http"
	"slices"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// users has destinations delete users, and the store forget them.
type users struct{ *Handler }

// delete asks for users to be deleted: those of a JSON, or one a line.
func (h users) delete(w http.ResponseWriter, r *http.Request) error {
	if isType(r, api.LinesType) {
		q := queryOf(r, api.ParamID, api.ParamSource+"*")
		if q.err != nil {
			return q.err
		}
		d, err := h.deletion(q.text(api.ParamID), q.values[api.ParamSource])
		if err != nil {
			return err
		}
		return h.upload(w, r, func(ctx context.Context, p *progress, in *lineReader) error {
			line := 0
			err := h.each(ctx, d, in.lines(func(n int) { line = n }), p)
			return lineError(err, line)
		})
	}
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var asked api.Deletion
	if err := readJSON(w, r, &asked); err != nil {
		return err
	}
	if len(asked.Users) == 0 {
		return badRequest("users", "want at least one user")
	}
	d, err := h.deletion(asked.ID, asked.Sources)
	if err != nil {
		return err
	}
	for i, user := range asked.Users {
		if user == "" || len(user) > maxUser {
			return badRequest("users", "users[%d] has %d bytes, 1 to %d are allowed", i, len(user), maxUser)
		}
	}
	return h.work(w, r, func(ctx context.Context, p *progress) error {
		p.expect(len(asked.Users))
		return h.each(ctx, d, audience.Users(slices.Values(asked.Users)), p)
	})
}

// erase removes what is stored of a user.
func (h users) erase(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var asked api.Erasure
	if err := readJSON(w, r, &asked); err != nil {
		return err
	}
	if n := len(asked.User); n == 0 || n > maxUser {
		return badRequest("user", "user has %d bytes, 1 to %d are allowed", n, maxUser)
	}
	erased, claimed, err := h.config.Forwarder.EraseUser(r.Context(), asked.User)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, api.Erased{Erased: erased, Claimed: claimed})
}

const (
	maxUser = 8192 // bytes of a user id
	maxName = 255  // bytes of the id of a deletion
)

// deletion returns the deletion of an id, which "" makes up, that tells the
// destinations of sources: of all if there are none.
func (h users) deletion(id string, sources []string) (audience.Deletion, error) {
	if id == "" {
		id = "deletion-" + rand.Text()
	}
	if len(id) > maxName {
		return audience.Deletion{}, badRequest(api.ParamID, "id has %d bytes, the limit is %d", len(id), maxName)
	}
	d := audience.Deletion{ID: id}
	settings := h.config.Settings()
	for _, name := range sources {
		if !slices.ContainsFunc(settings.Sources, func(s config.Source) bool { return s.Name == name }) {
			return d, badRequest("sources", "there is no source %q", name)
		}
	}
	for _, s := range settings.Sources {
		if !s.Enabled || len(sources) > 0 && !slices.Contains(sources, s.Name) {
			continue
		}
		for _, destination := range s.Destinations {
			if c := settings.Destination(destination); c != nil && c.Enabled {
				d.Destinations = append(d.Destinations, destination)
			}
		}
	}
	if len(d.Destinations) == 0 {
		return d, badRequest("sources", "no source that is affected has a destination that is enabled")
	}
	return d, nil
}

// each has destinations told of users, and counts them.
func (h users) each(ctx context.Context, d audience.Deletion, users iter.Seq2[string, error], p *progress) error {
	return h.announcer.Delete(ctx, d, p.counting(users))
}
