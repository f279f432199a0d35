package admin

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
)

// samples has a sample call for each type: the fields of that type, as JSON. If calls of the type
// have a name, nameKey is its field, and name the default.
var samples = map[string]struct{ fields, nameKey, name string }{
	"identify": {fields: `"traits":{"email":"test-user@example.com","name":"Test User","plan":"free"}`},
	"track":    {`"properties":{"price":19.5,"product":"Blue Shirt","quantity":2}`, "event", "Test Event"},
	"page":     {`"properties":{"path":"/","referrer":"","title":"Home","url":"https://www.example.com/"}`, "name", "Home"},
	"screen": {`"context":{"app":{"build":"1","name":"Example","version":"1.0"},` +
		`"device":{"model":"iPhone 7","type":"ios"},"os":{"name":"iOS","version":"10.2"}}`, "name", "Home"},
	"group": {fields: `"groupId":"test-group","traits":{"employees":42,"name":"Example Ltd"}`},
	"alias": {fields: `"previousId":"test-visitor"`},
}

// sampleTypes are the types of samples, in the order in which they are shown.
var sampleTypes = []string{"identify", "track", "page", "screen", "group", "alias"}

func sample(typ, name string) event.JSON {
	s := samples[typ]
	call := fmt.Sprintf(`{"type":%q,"messageId":"test-%s","timestamp":%q,"userId":"test-user",`, typ, rand.Text(), time.Now().UTC().Format(time.RFC3339Nano))
	if s.nameKey != "" {
		value, _ := json.Marshal(cmp.Or(name, s.name)) // a text has no errors
		call += fmt.Sprintf(`%q:%s,`, s.nameKey, value)
	}
	return event.JSON(call + s.fields + "}")
}

// sendTest sends sample calls to a destination, to a URL, or to the destination in a document.
func sendTest(q *request, asked *api.TestRequest) (any, error) {
	destination, ofTenant, err := testDestination(q, asked)
	if err != nil {
		return nil, err
	}
	var source config.Source // its zero filter takes everything
	if asked.Source != "" {
		s := q.handler.config.Settings().Source(asked.Source)
		if s == nil {
			return nil, notFound("there is no source %q", asked.Source)
		}
		source = *s
	}
	types := asked.Types
	switch {
	case len(types) > 0:
	case ofTenant:
		types = []string{testType}
	default:
		types = sampleTypes
	}
	for i, typ := range types {
		if !ofTenant && !slices.Contains(sampleTypes, typ) {
			return nil, badRequest("types", "types[%d] is not one of %s", i, strings.Join(sampleTypes, ", "))
		}
		if slices.Contains(types[:i], typ) {
			return nil, badRequest("types", "%s is given twice", typ)
		}
	}
	if !q.handler.tests.TryAcquire(1) {
		return nil, unavailable("%d tests are running; try again in a few seconds", maxTests)
	}
	defer q.handler.tests.Release(1)
	exchanges := make([][]api.Exchange, len(types))
	errs := make([]error, len(types))
	var tries sync.WaitGroup
	for i, typ := range types {
		call := event.Call(sample(typ, asked.Event))
		if ofTenant {
			call = &event.Custom{Type: typ, ID: "test-" + rand.Text(), Data: map[string]any{"test": true}}
		}
		tries.Go(func() { exchanges[i], errs[i] = q.try(destination, &source, typ, call) })
	}
	tries.Wait()
	if err := errors.Join(errs...); err != nil {
		if refused, ok := errors.AsType[*webhook.ConfigError](err); ok && asked.URL != "" {
			return nil, badRequest("url", "url %s", refused.Problem)
		}
		refused, ok := errors.AsType[*event.CallError](err)
		if ok && ofTenant {
			return nil, badRequest("types", "types: %s", refused.Message())
		}
		if ok { // only the name of the event is the client's
			return nil, badRequest("event", "event: %s", refused.Message())
		}
		return nil, err
	}
	return api.TestResult{Exchanges: slices.Concat(exchanges...)}, nil
}

// testType is the type of the event that tests the destination of a tenant.
const testType = "webhook.test"

// testDestination returns a destination of the settings or of a tenant, or one from the URL or the
// document. Only the operator, who also wrote the settings, may use this API. So any address in a
// URL is allowed, unless a tenant has written the URL. The guard checks the addresses that a host
// name resolves to.
func testDestination(q *request, asked *api.TestRequest) (d webhook.Destination, ofTenant bool, err error) {
	switch byID, byURL, byDocument := asked.Destination != "", asked.URL != "", asked.Document != nil; {
	case byURL && !byID && !byDocument:
		return webhook.Destination{ID: "test", Endpoints: []webhook.Endpoint{{URL: asked.URL}}, Trusted: true}, false, nil
	case byDocument && !byID && !byURL:
		var given config.Document
		if d, err = q.readDocument("test", asked.Document, &given); err != nil {
			return d, false, wrongDocument("document.", err)
		}
	case !byID || byURL || byDocument:
		return d, false, badRequest("destination", "want a destination, a url or a document")
	default:
		of := q.handler.config.Settings().Destination(asked.Destination)
		if of == nil {
			d, err = q.handler.config.Tenants.Destination(q.http.Context(), asked.Destination)
			if errors.Is(err, webhook.ErrUnknownDestination) || errors.Is(err, webhook.ErrTakesNothing) {
				err = noDestination(asked.Destination)
			}
			if d.Tenant != "" || err != nil {
				return d, true, err
			}
		} else {
			d = *of.Webhook
		}
	}
	d.Trusted = true
	return d, false, nil
}

// try sends one sample.
func (q *request) try(d webhook.Destination, source *config.Source, typ string, call event.Call) ([]api.Exchange, error) {
	e, err := new(event.Encoder).Encode(call)
	if err != nil {
		return nil, err
	}
	tried, err := q.handler.config.Forwarder.Try(q.http.Context(), &d, e)
	if err != nil {
		return nil, err
	}
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
			Type: typ, Filtered: x.Filtered || !source.Filter.Match(&e), Endpoint: x.Endpoint,
			Headers: append(headers, headersOf(x.Header)...), Body: x.Body, Signature: x.Header.Get(signature.Header),
			Status: x.Status, Answer: x.Answer, Got: headersOf(x.AnswerHeader),
			Reason: string(x.Reason), Error: x.Error, Outcome: string(x.Outcome),
			Timing: api.Timing{
				Resolved: x.Resolved, Connected: x.Connected, Secured: x.Secured, FirstByte: x.FirstByte, Total: x.Took,
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
