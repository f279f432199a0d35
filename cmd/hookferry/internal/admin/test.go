package admin

import (
	"cmp"
	"crypto/rand"
	"errors"
	"maps"
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

// samples has a function for each type of call, which makes the sample call that sendTest sends.
// The argument name is the name of the event, the page or the screen; "" means a name of the
// sample's own.
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

// sendTest sends sample calls to a destination, to a URL, or to the destination in a document.
func sendTest(q *request, asked *api.TestRequest) (any, error) {
	destination, err := testDestination(q, asked)
	if err != nil {
		return nil, err
	}
	var source config.Source // its zero filter takes everything
	if asked.Source != "" {
		s := q.config.Settings().Source(asked.Source)
		if s == nil {
			return nil, notFound("there is no source %q", asked.Source)
		}
		source = *s
	}
	types := asked.Types
	if len(types) == 0 {
		types = sampleTypes
	}
	for i, typ := range types {
		if samples[typ] == nil {
			return nil, badRequest("types", "types[%d] is not one of %s", i, strings.Join(sampleTypes, ", "))
		}
		if slices.Contains(types[:i], typ) {
			return nil, badRequest("types", "%s is given twice", typ)
		}
	}
	select {
	case q.tests <- struct{}{}:
		defer func() { <-q.tests }()
	default:
		return nil, unavailable("%d tests are running; try again in a few seconds", maxTests)
	}
	exchanges := make([][]api.Exchange, len(types))
	errs := make([]error, len(types))
	var tries sync.WaitGroup
	for i, typ := range types {
		tries.Go(func() { exchanges[i], errs[i] = q.try(destination, &source, typ, asked.Event) })
	}
	tries.Wait()
	if err := errors.Join(errs...); err != nil {
		if refused, ok := errors.AsType[*webhook.ConfigError](err); ok && asked.URL != "" {
			return nil, badRequest("url", "url %s", refused.Problem)
		}
		return nil, err
	}
	return api.TestResult{Exchanges: slices.Concat(exchanges...)}, nil
}

// testDestination returns the destination of a test: a destination of the settings, or one made
// from the URL or the document in the request.
func testDestination(q *request, asked *api.TestRequest) (*webhook.Destination, error) {
	switch byID, byURL, byDocument := asked.Destination != "", asked.URL != "", asked.Document != nil; {
	case byURL && !byID && !byDocument:
		return &webhook.Destination{ID: "test", Endpoints: []webhook.Endpoint{{URL: asked.URL}}}, nil
	case byDocument && !byID && !byURL:
		d, err := config.ParseDestination(asked.Document, q.config.Settings().Webhooks.Allow)
		if err != nil {
			return nil, wrongDocument("document.", err)
		}
		return d.Webhook, nil
	case !byID || byURL || byDocument:
		return nil, badRequest("destination", "want a destination, a url or a document")
	}
	d := q.config.Settings().Destination(asked.Destination)
	if d == nil {
		return nil, noDestination(asked.Destination)
	}
	if d.Webhook == nil {
		return nil, badRequest("destination", "the document of the destination in the store is not valid; the log says why")
	}
	return d.Webhook, nil
}

// try sends one sample. Only the operator may use this API, and the operator also wrote the
// settings. So an address that stands in a URL is allowed. The guard checks only the addresses that
// a host name resolves to.
func (q *request) try(d *webhook.Destination, source *config.Source, typ, name string) ([]api.Exchange, error) {
	e, err := new(event.Encoder).Encode(samples[typ]("test-"+rand.Text(), name))
	if err != nil {
		return nil, err
	}
	tried, err := q.config.Forwarder.Try(q.Context(), webhook.Trial{Destination: d, Trusted: true, Event: e})
	if err != nil {
		return nil, err
	}
	filter := webhook.Filter(source.Filter)
	var all []api.Exchange
	for i := range tried {
		x := &tried[i]
		host := ""
		if u, err := url.Parse(x.Endpoint); err == nil {
			host = u.Host
		}
		headers := []api.Header{
			{Name: "Host", Value: host},
			{Name: "Content-Length", Value: strconv.Itoa(len(x.Body))},
		}
		all = append(all, api.Exchange{
			Type: typ, Filtered: x.Filtered || !filter.Match(&e), Endpoint: x.Endpoint,
			Headers: append(headers, headersOf(x.Header)...), Body: x.Body, Signature: x.Header.Get(signature.Header),
			Status: x.Status, Answer: x.Answer, Got: headersOf(x.AnswerHeader),
			Reason: string(x.Reason), Error: x.Error, Outcome: string(x.Outcome),
			Timing: api.Timing{
				Resolved: api.Milliseconds(x.Resolved), Connected: api.Milliseconds(x.Connected), Secured: api.Milliseconds(x.Secured),
				FirstByte: api.Milliseconds(x.FirstByte), Total: api.Milliseconds(x.Took),
			},
		})
	}
	return all, nil
}

func headersOf(h http.Header) (all []api.Header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			all = append(all, api.Header{Name: name, Value: v})
		}
	}
	return all
}
