package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// samples are the calls that the tester sends, by their type. A name is that of an event, a
// page or a screen.
var samples = map[string]func(id, name string) analytics.Message{
	"identify": func(id, _ string) analytics.Message {
		return &analytics.Identify{
			UserId: "test-user", MessageId: id,
			Traits: map[string]any{"name": "Test User", "email": "test-user@example.com", "plan": "free"},
		}
	},
	"track": func(id, name string) analytics.Message {
		return &analytics.Track{
			UserId: "test-user", MessageId: id, Event: cmp.Or(name, "Test Event"),
			Properties: map[string]any{"product": "Blue Shirt", "price": 19.5, "quantity": 2},
		}
	},
	"page": func(id, name string) analytics.Message {
		return &analytics.Page{
			UserId: "test-user", MessageId: id, Name: cmp.Or(name, "Home"),
			Traits: map[string]any{"title": "Home", "path": "/", "url": "https://www.example.com/", "referrer": ""},
		}
	},
	"screen": func(id, name string) analytics.Message {
		return &analytics.Screen{
			UserId: "test-user", MessageId: id, Name: cmp.Or(name, "Home"),
			Context: map[string]any{
				"device": map[string]any{"model": "iPhone 7", "type": "ios"},
				"os":     map[string]any{"name": "iOS", "version": "10.2"},
				"app":    map[string]any{"name": "Example", "version": "1.0", "build": "1"},
			},
		}
	},
	"group": func(id, _ string) analytics.Message {
		return &analytics.Group{
			UserId: "test-user", MessageId: id, GroupId: "test-group",
			Traits: map[string]any{"name": "Example Ltd", "employees": 42},
		}
	},
	"alias": func(id, _ string) analytics.Message {
		return &analytics.Alias{UserId: "test-user", PreviousId: "test-visitor", MessageId: id}
	},
}

// sampleTypes are the types of samples, in the order in which they are shown.
var sampleTypes = []string{"identify", "track", "page", "screen", "group", "alias"}

// test sends samples to a destination, to a URL, or to what a document describes.
func (h *Handler) test(w http.ResponseWriter, r *http.Request) error {
	if q := queryOf(r); q.err != nil {
		return q.err
	}
	var asked api.TestRequest
	if err := readJSON(w, r, &asked); err != nil {
		return err
	}
	destination, err := h.testDestination(&asked)
	if err != nil {
		return err
	}
	var source config.Source
	if asked.Source != "" {
		all := h.config.Settings().Sources
		i := slices.IndexFunc(all, func(s config.Source) bool { return s.Name == asked.Source })
		if i < 0 {
			return notFound("there is no source %q", asked.Source)
		}
		source = all[i]
	}
	types := asked.Types
	if len(types) == 0 {
		types = sampleTypes
	}
	for i, typ := range types {
		if samples[typ] == nil {
			return badRequest("types", "types[%d] is not one of %s", i, strings.Join(sampleTypes, ", "))
		}
		if slices.Contains(types[:i], typ) {
			return badRequest("types", "%s is given twice", typ)
		}
	}
	select {
	case h.tests <- struct{}{}:
		defer func() { <-h.tests }()
	default:
		return refuse(api.CodeUnavailable, http.StatusServiceUnavailable, "", "%d tests are running; try again in a few seconds", maxTests)
	}
	exchanges := make([][]api.Exchange, len(types))
	errs := make([]error, len(types))
	var tries sync.WaitGroup
	for i, typ := range types {
		tries.Go(func() { exchanges[i], errs[i] = h.try(r.Context(), destination, &source, typ, asked.Event) })
	}
	tries.Wait()
	if err := errors.Join(errs...); err != nil {
		var refused *webhook.ConfigError
		if errors.As(err, &refused) && asked.URL != "" {
			return badRequest("url", "url %s", refused.Problem)
		}
		return err
	}
	return writeJSON(w, http.StatusOK, api.TestResult{Exchanges: slices.Concat(exchanges...)})
}

// testDestination returns what a test is for.
func (h *Handler) testDestination(asked *api.TestRequest) (*webhook.Destination, error) {
	given := 0
	for _, is := range []bool{asked.Destination != "", asked.URL != "", asked.Document != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, badRequest("destination", "want a destination, a url or a document")
	case asked.Document != nil:
		d, err := config.ParseDestination(asked.Document, h.config.Settings().Webhooks.Allow)
		if err != nil {
			return nil, wrongDocument("document.", err)
		}
		return d.Webhook, nil
	case asked.URL != "":
		return &webhook.Destination{ID: "test", Endpoints: []webhook.Endpoint{{URL: asked.URL}}}, nil
	}
	if err := h.known(asked.Destination); err != nil {
		return nil, err
	}
	d := h.config.Settings().Destination(asked.Destination).Webhook
	if d == nil {
		return nil, badRequest("destination", "what is stored of the destination is not valid; the log says why")
	}
	return d, nil
}

// wrongDocument is the answer to a document at a field that config refuses. It names the first
// key that is wrong as the field, and says all that is wrong.
func wrongDocument(at string, err error) error {
	var wrong *config.Error
	if !errors.As(err, &wrong) {
		return err
	}
	field := func(p config.Problem) string { return strings.TrimSuffix(at+p.Key, ".") }
	said := make([]string, len(wrong.Problems))
	for i, p := range wrong.Problems {
		said[i] = field(p) + " " + p.Text
	}
	return badRequest(field(wrong.Problems[0]), "%s", strings.Join(said, "; "))
}

// try sends one sample. What is written in the settings, and what somebody who
// may use this API writes, is the operator's word; what a name resolves to is
// not.
func (h *Handler) try(ctx context.Context, d *webhook.Destination, source *config.Source, typ, name string) ([]api.Exchange, error) {
	e, err := new(event.Encoder).Encode(samples[typ]("test-"+rand.Text(), name))
	if err != nil {
		return nil, err
	}
	tried, err := h.config.Forwarder.Try(ctx, webhook.Trial{Destination: d, Trusted: true, Event: e})
	if err != nil {
		return nil, err
	}
	filter := webhook.Filter(source.Filter)
	var all []api.Exchange
	for i := range tried {
		x := &tried[i]
		headers := []api.Header{
			{Name: "Host", Value: hostOf(x.Endpoint)},
			{Name: "Content-Length", Value: strconv.Itoa(len(x.Body))},
		}
		all = append(all, api.Exchange{
			Type:      typ,
			Filtered:  x.Filtered || !filter.Match(&e),
			Endpoint:  x.Endpoint,
			Headers:   append(headers, headersOf(x.Header)...),
			Body:      x.Body,
			Signature: x.Header.Get(signature.Header),
			Status:    x.Status,
			Answer:    x.Answer,
			Got:       headersOf(x.AnswerHeader),
			Reason:    string(x.Reason),
			Error:     x.Error,
			Outcome:   string(x.Outcome),
			Timing: api.Timing{
				Resolved:  api.Milliseconds(x.Resolved),
				Connected: api.Milliseconds(x.Connected),
				Secured:   api.Milliseconds(x.Secured),
				FirstByte: api.Milliseconds(x.FirstByte),
				Total:     api.Milliseconds(x.Took),
			},
		})
	}
	return all, nil
}

func hostOf(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return u.Host
}

// headersOf returns a header by name.
func headersOf(h http.Header) (all []api.Header) {
	for name, values := range h {
		for _, v := range values {
			all = append(all, api.Header{Name: name, Value: v})
		}
	}
	slices.SortStableFunc(all, func(a, b api.Header) int { return strings.Compare(a.Name, b.Name) })
	return all
}
