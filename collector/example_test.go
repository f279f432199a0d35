package collector_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/hookferry/analytics/collector"
	"github.com/hookferry/analytics/event"
)

// A printer prints the events that it gets. In a real program, a *webhook.Forwarder delivers them.
type printer struct{}

func (printer) ForwardEvents(_ context.Context, destinations []string, events ...event.Event) error {
	for _, e := range events {
		fmt.Println(e.Type, e.ID, "for", destinations)
	}
	return nil
}

func Example() {
	h, err := collector.New(collector.Config{
		Forwarder: printer{},
		Sources: collector.Keys(map[string]collector.Source{
			"the write key": {Name: "shop", Destinations: []string{"crm"}},
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := httptest.NewServer(h)
	defer srv.Close()

	// A server library sends batches; a browser sends single calls, with the
	// write key in them.
	for _, request := range []struct{ path, body string }{
		{"/v1/batch", `{"writeKey":"the write key","batch":[
			{"type":"identify","userId":"u1","messageId":"m1","traits":{"plan":"pro"}},
			{"type":"track","userId":"u1","messageId":"m2"}]}`},
		{"/v1/track", `{"writeKey":"the write key","userId":"u1","event":"Signed Up","messageId":"m3"}`},
		{"/v1/track", `{"writeKey":"a guess","userId":"u1","event":"Signed Up","messageId":"m4"}`},
	} {
		resp, err := http.Post(srv.URL+request.path, "application/json", strings.NewReader(request.body))
		if err != nil {
			fmt.Println(err)
			return
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("%s %d %s", request.path, resp.StatusCode, answer)
	}
	// Output:
	// identify m1 for [crm]
	// /v1/batch 200 {"success":true,"rejected":[{"index":1,"code":"missing_field","message":"event is required"}]}
	// track m3 for [crm]
	// /v1/track 200 {"success":true}
	// /v1/track 401 {"success":false,"code":"unknown_write_key","message":"the write key is unknown"}
}
