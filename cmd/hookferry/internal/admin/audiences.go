package admin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

func listAudiences(q *request) (any, error) {
	destination, part, after := q.param(api.ParamDestination), strings.ToLower(q.param(api.ParamQuery)), q.param(api.ParamAfter)
	slash := strings.LastIndexByte(after, '/') // the trait has no slash
	if after != "" && slash < 0 {
		return nil, errAfter
	}
	afterDestination, afterTrait := after[:max(slash, 0)], after[slash+1:]
	var selected []audience.Info
	for a, err := range q.announcer.Audiences(q.Context()) {
		if err != nil {
			return nil, err
		}
		if (destination == "" || a.Destination == destination) &&
			(strings.Contains(strings.ToLower(a.Name), part) || strings.Contains(a.Trait, part)) {
			selected = append(selected, a)
		}
	}
	answer := api.Audiences{Total: len(selected)}
	var err error
	answer.Audiences, answer.After, err = page(q, behind(selected, func(a audience.Info) bool {
		return cmp.Or(strings.Compare(a.Destination, afterDestination), strings.Compare(a.Trait, afterTrait)) > 0
	}), audienceOf, func(a *audience.Info) string { return a.Destination + "/" + a.Trait })
	return answer, err
}

func audienceOf(a *audience.Info) api.Audience {
	return api.Audience{Destination: a.Destination, Name: a.Name, Trait: a.Trait, Generation: a.Generation}
}

func (q *request) audience(destination, name string) (*audience.Audience, error) {
	if err := q.known(destination); err != nil {
		return nil, err
	}
	a, err := q.announcer.Audience(destination, name)
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
	if err := a.Create(q.Context()); err != nil {
		return nil, err
	}
	for known, err := range q.announcer.Audiences(q.Context()) {
		if err != nil {
			return nil, err
		}
		if known.Destination == asked.Destination && known.Trait == a.Trait() {
			return audienceOf(&known), nil
		}
	}
	return nil, errors.New("the audience is gone")
}

// downloadMembers sends the members of an audience, one a line. If an error occurs after the answer
// has begun, downloadMembers cuts the connection, so that the client notices that the list is
// incomplete.
func downloadMembers(q *request) (any, error) {
	a, err := q.audience(q.PathValue("destination"), q.PathValue("audience"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := q.untilClosed()
	defer cancel()
	control := http.NewResponseController(q.w)
	_ = control.SetReadDeadline(time.Time{})
	q.w.Header().Set("Content-Type", api.LinesType+"; charset=utf-8")
	out := bufio.NewWriterSize(q.w, 64<<10)
	began := false
	for user, err := range a.Members(ctx) {
		switch {
		case err != nil && began:
			panic(http.ErrAbortHandler)
		case err != nil:
			return nil, err
		}
		began = true
		if out.Available() < len(user)+1 {
			_ = control.SetWriteDeadline(time.Now().Add(streamTimeout))
		}
		out.WriteString(user)
		if out.WriteByte('\n') != nil {
			return nil, nil // the client is gone
		}
	}
	_ = control.SetWriteDeadline(time.Now().Add(streamTimeout))
	_ = out.Flush()
	return nil, nil
}

// syncMembers makes the users in the lines of an upload the members of an audience.
func syncMembers(q *request) (any, error) {
	if !q.isType(api.LinesType) {
		return nil, refuse(api.CodeUnsupported, http.StatusUnsupportedMediaType, "Content-Type", "want %s: one user id a line", api.LinesType)
	}
	a, err := q.audience(q.PathValue("destination"), q.PathValue("audience"))
	if err != nil {
		return nil, err
	}
	return nil, q.upload(func(ctx context.Context, p *progress, users iter.Seq2[string, error]) error {
		result, err := a.Sync(ctx, users)
		p.joined.Store(int64(result.Joined))
		p.left.Store(int64(result.Left))
		return err
	})
}
