package admin

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/webhook"
)

// audiences serves audiences and their members.
type audiences struct{ *Handler }

// list answers with a page of them.
func (h audiences) list(w http.ResponseWriter, r *http.Request) error {
	q := queryOf(r, api.ParamDestination, api.ParamQuery, api.ParamLimit, api.ParamAfter)
	destination, part := q.text(api.ParamDestination), strings.ToLower(q.text(api.ParamQuery))
	limit := q.number(api.ParamLimit, defaultPage, maxPage)
	afterDestination, afterTrait := q.afterAudience()
	if q.err != nil {
		return q.err
	}
	page := api.Audiences{Audiences: []api.Audience{}}
	var last audience.Info // of the page
	more := false          // there are others behind it
	for a, err := range h.announcer.Audiences(r.Context()) {
		if err != nil {
			return err
		}
		if destination != "" && a.Destination != destination ||
			!strings.Contains(strings.ToLower(a.Name), part) && !strings.Contains(a.Trait, part) {
			continue
		}
		page.Total++
		switch {
		case cmp.Or(strings.Compare(a.Destination, afterDestination), strings.Compare(a.Trait, afterTrait)) <= 0:
		case len(page.Audiences) < limit:
			page.Audiences = append(page.Audiences, audienceOf(a))
			last = a
		default:
			more = true
		}
	}
	if more {
		page.After = url.PathEscape(last.Destination) + "/" + url.PathEscape(last.Trait)
	}
	return writeJSON(w, http.StatusOK, page)
}

// afterAudience returns which audience a listing goes on behind, the empty texts if
// it begins.
func (q *query) afterAudience() (destination, trait string) {
	after := q.text(api.ParamAfter)
	if after == "" {
		return "", ""
	}
	destination, trait, found := strings.Cut(after, "/")
	destination, err := url.PathUnescape(destination)
	trait, err2 := url.PathUnescape(trait)
	if !found || err != nil || err2 != nil {
		q.fail(api.ParamAfter, "after is not that of a page of audiences")
	}
	return destination, trait
}

func audienceOf(a audience.Info) api.Audience {
	return api.Audience{Destination: a.Destination, Name: a.Name, Trait: a.Trait, Generation: a.Generation}
}

// audience returns the audience of a name, or what is wrong with it.
func (h audiences) audience(destination, name string) (*audience.Audience, error) {
	if err := h.known(destination); err != nil {
		return nil, err
	}
	a, err := h.announcer.Audience(destination, name)
	if err != nil && !errors.Is(err, webhook.ErrUnsupported) && !errors.Is(err, webhook.ErrUnknownDestination) {
		return nil, badRequest("name", "%v", err)
	}
	return a, err
}

func (h audiences) create(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var asked api.Audience
	if err := readJSON(w, r, &asked); err != nil {
		return err
	}
	a, err := h.audience(asked.Destination, asked.Name)
	if err != nil {
		return err
	}
	if asked.Trait != "" && asked.Trait != a.Trait() || asked.Generation != 0 {
		return badRequest("trait", "trait and generation follow from the rest; leave them out")
	}
	if err := a.Create(r.Context()); err != nil {
		return err
	}
	for known, err := range h.announcer.Audiences(r.Context()) {
		if err != nil {
			return err
		}
		if known.Destination == asked.Destination && known.Trait == a.Trait() {
			return writeJSON(w, http.StatusOK, audienceOf(known))
		}
	}
	return errors.New("the audience is gone")
}

// members downloads those of an audience. A download that fails on the way ends
// without an end.
func (h audiences) members(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	a, err := h.audience(r.PathValue("destination"), r.PathValue("audience"))
	if err != nil {
		return err
	}
	ctx, cancel := h.untilClosed(r.Context())
	defer cancel()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", api.LinesType+"; charset=utf-8")
	out := bufio.NewWriterSize(w, 64<<10)
	began := false
	for user, err := range a.Members(ctx) {
		switch {
		case err != nil && began:
			panic(http.ErrAbortHandler)
		case err != nil:
			return err
		}
		began = true
		if out.Available() < len(user)+1 {
			_ = control.SetWriteDeadline(time.Now().Add(streamTimeout))
		}
		out.WriteString(user)
		if out.WriteByte('\n') != nil {
			return nil // there is nobody to tell
		}
	}
	_ = control.SetWriteDeadline(time.Now().Add(streamTimeout))
	_ = out.Flush()
	return nil
}

// sync makes the lines of an upload the members of an audience.
func (h audiences) sync(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	if !isType(r, api.LinesType) {
		return refuse(api.CodeUnsupported, http.StatusUnsupportedMediaType, "Content-Type", "want %s: one user id a line", api.LinesType)
	}
	a, err := h.audience(r.PathValue("destination"), r.PathValue("audience"))
	if err != nil {
		return err
	}
	return h.upload(w, r, func(ctx context.Context, p *progress, in *lineReader) error {
		line := 0
		result, err := a.Sync(ctx, p.counting(in.lines(func(n int) { line = n })))
		p.change(func(now *api.Progress) { now.Joined, now.Left = result.Joined, result.Left })
		return lineError(err, line)
	})
}
