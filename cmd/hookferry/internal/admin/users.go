package admin

import (
	"context"
	"crypto/rand"
	"iter"
	"slices"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

const (
	maxUser = 8192 // in bytes, of a user id
	maxName = 255  // in bytes, of the id of a deletion
)

// deleteUsers tells destinations to delete users. The body is a JSON document with the users, or a
// text with one user a line. With such a text, the id and the sources are query parameters.
func deleteUsers(q *request) (any, error) {
	var asked api.Deletion
	lines := q.isType(api.LinesType)
	if lines {
		asked.ID, asked.Sources = q.param(api.ParamID), q.query[api.ParamSource]
	} else if len(q.query) > 0 {
		return nil, badRequest("", "there are no parameters here; the id and the sources are in the JSON")
	} else if err := q.readJSON(&asked); err != nil {
		return nil, err
	} else if len(asked.Users) == 0 {
		return nil, badRequest("users", "want at least one user")
	}
	d, err := deletionOf(&asked, q.config.Settings())
	if err != nil {
		return nil, err
	}
	if lines {
		return nil, q.upload(func(ctx context.Context, p *progress, users iter.Seq2[string, error]) error {
			return q.announcer.Delete(ctx, d, users)
		})
	}
	for i, user := range asked.Users {
		if user == "" || len(user) > maxUser {
			return nil, badRequest("users", "users[%d] has %d bytes, 1 to %d are allowed", i, len(user), maxUser)
		}
	}
	return nil, q.work(func(ctx context.Context, p *progress) error {
		p.total.Store(int64(len(asked.Users)))
		return q.announcer.Delete(ctx, d, p.counting(audience.Users(slices.Values(asked.Users))))
	})
}

// deletionOf returns the deletion that a client asks for. The deletion goes to the enabled
// destinations of the named sources, or of all sources if none is named.
func deletionOf(asked *api.Deletion, settings *config.Settings) (audience.Deletion, error) {
	d := audience.Deletion{ID: asked.ID}
	if d.ID == "" {
		d.ID = "deletion-" + rand.Text()
	}
	if len(d.ID) > maxName {
		return d, badRequest(api.ParamID, "id has %d bytes, the limit is %d", len(d.ID), maxName)
	}
	for _, name := range asked.Sources {
		if settings.Source(name) == nil {
			return d, badRequest("sources", "there is no source %q", name)
		}
	}
	for _, s := range settings.Sources {
		if !s.Enabled || len(asked.Sources) > 0 && !slices.Contains(asked.Sources, s.Name) {
			continue
		}
		for _, destination := range s.Destinations {
			if c := settings.Destination(destination); c != nil && c.Enabled {
				d.Destinations = append(d.Destinations, destination)
			}
		}
	}
	if len(d.Destinations) == 0 {
		return d, badRequest("sources", "none of the selected sources has an enabled destination")
	}
	return d, nil
}

func eraseUser(q *request, asked *api.Erasure) (any, error) {
	if n := len(asked.User); n == 0 || n > maxUser {
		return nil, badRequest("user", "user has %d bytes, 1 to %d are allowed", n, maxUser)
	}
	erased, claimed, err := q.config.Forwarder.EraseUser(q.Context(), asked.User)
	return api.Erased{Erased: erased, Claimed: claimed}, err
}
