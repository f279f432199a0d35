package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

const (
	maxUser = 8192 // in bytes, of a user id
	maxName = 255  // in bytes, of the id of a deletion
)

// deleteUsers tells destinations to delete users. The body is an api.Deletion, or has one user a line;
// then the id and the sources are query parameters.
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
	d, err := q.deletionOf(&asked)
	if err != nil {
		return nil, err
	}
	if lines {
		return nil, q.upload(func(ctx context.Context, p *progress, users iter.Seq2[string, error]) error {
			return q.handler.announcer.Delete(ctx, d, users)
		})
	}
	for i, user := range asked.Users {
		if user == "" || len(user) > maxUser {
			return nil, badRequest("users", "users[%d] has %d bytes, 1 to %d are allowed", i, len(user), maxUser)
		}
	}
	return nil, q.work(func(ctx context.Context, p *progress) error {
		p.total.Store(int64(len(asked.Users)))
		return q.handler.announcer.Delete(ctx, d, p.counting(audience.Users(slices.Values(asked.Users))))
	})
}

// deletionOf returns the deletion from the enabled destinations of the named sources, or of all
// sources.
func (q *request) deletionOf(asked *api.Deletion) (audience.Deletion, error) {
	settings := q.handler.config.Settings()
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
		if s.Disabled || len(asked.Sources) > 0 && !slices.Contains(asked.Sources, s.Name) {
			continue
		}
		for _, destination := range s.Destinations {
			if q.enabled(destination) {
				d.Destinations = append(d.Destinations, destination)
			}
		}
	}
	if len(d.Destinations) == 0 {
		return d, badRequest("sources", "none of the selected sources has an enabled destination")
	}
	return d, nil
}

// enabled reports whether a destination of no tenant exists and is enabled.
func (q *request) enabled(id string) bool {
	if c := q.handler.config.Settings().Destination(id); c != nil {
		return !c.Disabled
	}
	own, ok := q.handler.config.Tenants.FindOwn(id)
	return ok && !own.Disabled
}

func eraseUser(q *request, asked *api.Erasure) (any, error) {
	if n := len(asked.User); n == 0 || n > maxUser {
		return nil, badRequest("user", "user has %d bytes, 1 to %d are allowed", n, maxUser)
	}
	erased, claimed, err := q.handler.config.Forwarder.EraseUser(q.http.Context(), asked.User)
	return api.Erased{Erased: erased, Claimed: claimed}, err
}

func listAudiences(q *request) (any, error) {
	destination, part, after := q.param(api.ParamDestination), strings.ToLower(q.param(api.ParamQuery)), q.param(api.ParamAfter)
	slash := strings.LastIndexByte(after, '/') // the trait has no slash
	if after != "" && slash < 0 {
		return nil, errAfter
	}
	afterDestination, afterTrait := after[:max(slash, 0)], after[slash+1:]
	var selected []audience.Info
	for a, err := range q.handler.announcer.Audiences(q.http.Context()) {
		if err != nil {
			return nil, err
		}
		if (destination == "" || a.Destination == destination) &&
			(strings.Contains(strings.ToLower(a.Name), part) || strings.Contains(a.Trait, part)) {
			selected = append(selected, a)
		}
	}
	list, err := page(q, behind(selected, func(a audience.Info) bool {
		return cmp.Or(strings.Compare(a.Destination, afterDestination), strings.Compare(a.Trait, afterTrait)) > 0
	}), audienceOf, func(a *audience.Info) string { return a.Destination + "/" + a.Trait })
	list.Total = len(selected)
	return list, err
}

func audienceOf(a *audience.Info) api.Audience {
	return api.Audience{Destination: a.Destination, Name: a.Name, Trait: a.Trait, Generation: a.Generation}
}

func (q *request) audience(destination, name string) (*audience.Audience, error) {
	if err := q.known(destination); err != nil {
		return nil, err
	}
	a, err := q.handler.announcer.Audience(destination, name)
	if err != nil && !errors.Is(err, webhook.ErrUnsupported) && !errors.Is(err, webhook.ErrUnknownDestination) {
		return nil, badRequest("name", "%v", err)
	}
	return a, err
}

func createAudience(q *request, asked *api.Audience) (any, error) {
	a, err := q.audience(asked.Destination, asked.Name)
	if err != nil {
		return nil, err
	}
	if asked.Trait != "" && asked.Trait != a.Trait() || asked.Generation != 0 {
		return nil, badRequest("trait", "leave out trait and generation: the server sets them")
	}
	created, err := a.Create(q.http.Context())
	return audienceOf(&created), err
}

// downloadMembers sends the members of an audience, one a line. After an error in the middle it cuts
// the connection, so that the client notices that the list is incomplete.
func downloadMembers(q *request) (any, error) {
	a, err := q.audience(q.http.PathValue("destination"), q.http.PathValue("audience"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := q.untilClosed()
	defer cancel()
	s := newStream(q.w, api.LinesType+"; charset=utf-8")
	lines, began := make([]byte, 0, 64<<10), false
	for user, err := range a.Members(ctx) {
		switch {
		case err != nil && began:
			panic(http.ErrAbortHandler)
		case err != nil:
			return nil, err
		}
		if len(lines)+len(user)+1 > cap(lines) {
			began = true
			if s.write(lines) != nil {
				return nil, nil
			}
			lines = lines[:0]
		}
		lines = append(append(lines, user...), '\n')
	}
	_ = s.write(lines)
	return nil, nil
}

// syncMembers makes the users in the lines of an upload the members of an audience.
func syncMembers(q *request) (any, error) {
	if !q.isType(api.LinesType) {
		return nil, refuse(api.CodeUnsupported, http.StatusUnsupportedMediaType, "Content-Type", "want %s: one user id a line", api.LinesType)
	}
	a, err := q.audience(q.http.PathValue("destination"), q.http.PathValue("audience"))
	if err != nil {
		return nil, err
	}
	if q.param(api.ParamAllowShrink) != "" {
		a = a.AllowShrink()
	}
	return nil, q.upload(func(ctx context.Context, p *progress, users iter.Seq2[string, error]) error {
		result, err := a.Sync(ctx, users)
		p.joined.Store(int64(result.Joined))
		p.left.Store(int64(result.Left))
		return err
	})
}
