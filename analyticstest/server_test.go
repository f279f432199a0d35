package analyticstest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	"github.com/hookferry/analytics/step"
)

func newClient(srv *analyticstest.Server) *analytics.Client {
	client := analytics.New("write-key")
	client.Transport = srv.Transport()
	return client
}

func track(t *testing.T, client *analytics.Client, event string) {
	t.Helper()
	if err := client.Track(&analytics.Track{UserId: "u1", Event: event}); err != nil {
		t.Fatal(err)
	}
}

func TestCallsReturnsTheFieldsOfEachType(t *testing.T) {
	srv := analyticstest.New(t)
	client := newClient(srv)
	at := time.Date(2026, 3, 4, 5, 6, 7, 891e6, time.UTC)
	when := analytics.FormatTime(at)
	object := map[string]any{"n": 1, "list": []string{"a"}, "at": at}
	received := map[string]any{"n": 1.0, "list": []any{"a"}, "at": when}
	for _, err := range []error{
		client.Identify(&analytics.Identify{UserId: "u1", AnonymousId: "a1", Traits: object, Context: object, Integrations: object, Timestamp: when, MessageId: "m1"}),
		client.Track(&analytics.Track{UserId: "u1", AnonymousId: "a1", Event: "e", Properties: object, Context: object, Integrations: object, Timestamp: when, MessageId: "m2"}),
		client.Page(&analytics.Page{UserId: "u1", AnonymousId: "a1", Category: "c", Name: "n", Traits: object, Context: object, Integrations: object, Timestamp: when, MessageId: "m3"}),
		client.Screen(&analytics.Screen{UserId: "u1", AnonymousId: "a1", Name: "n", Properties: object, Context: object, Integrations: object, Timestamp: when, MessageId: "m4"}),
		client.Group(&analytics.Group{UserId: "u1", AnonymousId: "a1", GroupId: "g", Traits: object, Context: object, Integrations: object, Timestamp: when, MessageId: "m5"}),
		client.Alias(&analytics.Alias{UserId: "u1", AnonymousId: "a1", PreviousId: "p", Context: object, Integrations: object, Timestamp: when, MessageId: "m6"}),
		client.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []analyticstest.Call{
		{Type: "identify", MessageId: "m1", Traits: received},
		{Type: "track", MessageId: "m2", Event: "e", Properties: received},
		{Type: "page", MessageId: "m3", Category: "c", Name: "n", Properties: received},
		{Type: "screen", MessageId: "m4", Name: "n", Properties: received},
		{Type: "group", MessageId: "m5", GroupId: "g", Traits: received},
		{Type: "alias", MessageId: "m6", PreviousId: "p"},
	}
	for i := range want {
		c := &want[i]
		c.UserId, c.AnonymousId, c.Timestamp, c.Context, c.Integrations, c.WriteKey = "u1", "a1", at, received, received, "write-key"
	}
	got := srv.Calls()
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(analyticstest.Call{}, "JSON")); d != "" {
		t.Errorf("Calls() (-want +got):\n%s", d)
	}
	for i, c := range got {
		var m map[string]any
		if err := json.Unmarshal(c.JSON, &m); err != nil || m["messageId"] != want[i].MessageId {
			t.Errorf("JSON of call %d = %s, %v, want the call", i, c.JSON, err)
		}
	}
}

func TestBatchesReturnsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t)
		client := newClient(srv)
		client.Endpoint = "https://collector.example/base" // any host works
		track(t, client, "e")
		time.Sleep(time.Second) // in the time of the bubble
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		batches := srv.Batches()
		if len(batches) != 1 {
			t.Fatalf("%d batches, want 1", len(batches))
		}
		b := batches[0]
		library := map[string]any{"library": map[string]any{"name": "analytics-go", "version": analytics.Version}}
		want := analyticstest.Batch{
			Number:    1,
			Time:      time.Now(),
			Path:      "/base/v1/batch",
			WriteKey:  "write-key",
			MessageId: b.MessageId,
			SentAt:    time.Now(),
			Context:   library,
			Calls:     srv.Calls(),
			Status:    200,
		}
		if d := cmp.Diff(want, b, cmpopts.IgnoreFields(analyticstest.Batch{}, "Header", "Body")); d != "" {
			t.Errorf("Batches()[0] (-want +got):\n%s", d)
		}
		if b.MessageId == "" || len(b.Calls) != 1 || b.Header.Get("User-Agent") != "analytics-go/"+analytics.Version || !json.Valid(b.Body) {
			t.Errorf("Batches()[0] = %+v, want ids, one call, a User-Agent and the body", b)
		}
	})
}

// steps has every kind of step, and its effect on a batch of three calls.
var steps = []struct {
	name    string
	step    step.Step
	status  int              // status of the first attempt
	calls   int              // number of calls in the first attempt
	reason  analytics.Reason // why the client drops the calls; empty if it delivers them
	retries int              // number of retries until the calls are dropped or delivered
	hangs   bool             // the step hangs until the client gives up
}{
	{name: "zero Step", status: 200, calls: 3},
	{name: "Answer 204", step: step.Answer(204), status: 204, calls: 3},
	{name: "200 with garbage", step: step.Answer(200).WithBody("<html>{\"rejected\":\x00"), status: 200, calls: 3},
	{name: "200 in single bytes", step: step.Answer(200).Drip(time.Nanosecond), status: 200, calls: 3},
	{name: "200 that hangs in the middle", step: step.Answer(200).Drip(time.Hour), status: 200, calls: 3, hangs: true},
	{name: "200 of a gigabyte", step: step.Stream(1 << 30), status: 200, calls: 3},
	{name: "200 with too large a Content-Length", step: step.Answer(200).Misstate(1 << 20), status: 200, calls: 3},
	{name: "200 with too small a Content-Length", step: step.Answer(200).Misstate(3), status: 200, calls: 3},
	{name: "200 and hangs up", step: step.Answer(200).HangUp(), status: 200, calls: 3},
	{name: "204 and hangs up", step: step.Answer(204).HangUp(), status: 204, calls: 3},
	{name: "200 cut off", step: step.Answer(200).Cut(), status: 200, calls: 3},
	{name: "Reject all", step: analyticstest.Reject(0, 1, 2), status: 200, calls: 3, reason: analytics.ReasonRejected},
	{name: "400", step: step.Answer(400), status: 400, calls: 3, reason: analytics.ReasonRefused},
	{name: "422", step: step.Answer(422).WithBody("no such plan"), status: 422, calls: 3, reason: analytics.ReasonRefused},
	{name: "307", step: step.Answer(307).With("Location", "http://elsewhere.example/"), status: 307, calls: 3, reason: analytics.ReasonRefused},
	{name: "503", step: step.Answer(503), status: 503, calls: 3, retries: 1},
	{name: "503 cut off, three times", step: step.Answer(503).Cut().Times(3), status: 503, calls: 3, retries: 3},
	{name: "Hang", step: step.Hang(), calls: 3, retries: 1, hangs: true},
	{name: "HangReading", step: step.HangReading(), retries: 1, hangs: true},
	{name: "Close", step: step.Close(), calls: 3, retries: 1},
	{name: "HalfClose", step: step.HalfClose(), calls: 3, retries: 1},
	{name: "Reset", step: step.Reset(), calls: 3, retries: 1},
	{name: "ResetReading", step: step.ResetReading(), retries: 1},
	{name: "Garbage", step: step.Garbage(), calls: 3, retries: 1},
	{name: "Raw", step: step.Raw("HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n"), calls: 3, retries: 1},
	{name: "EndlessHeader", step: step.EndlessHeader(), calls: 3, retries: 1},
	{name: "EndlessInformational", step: step.EndlessInformational(), calls: 3, retries: 1},
	{name: "Refuse on an open connection", step: step.Refuse(), calls: 3, retries: 1},
	{name: "Unreachable on an open connection", step: step.Unreachable(), calls: 3, retries: 1, hangs: true},
}

// The server takes each step once, and then answers 200.
func TestEachStepHasItsEffectOnAClient(t *testing.T) {
	for _, tt := range steps {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := analyticstest.New(t)
				client := newClient(srv)
				// This request opens the connection.
				track(t, client, "first")
				if err := client.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				srv.SetScript(tt.step, step.Answer(200))
				for range 3 {
					track(t, client, "e")
				}
				err := client.Close()
				if (err == nil) != (tt.reason == "") {
					t.Errorf("Close() = %v, want an error: %v", err, tt.reason != "")
				}
				batches := srv.Batches()[1:]
				if len(batches) != 1+tt.retries {
					t.Fatalf("%d attempts, want %d", len(batches), 1+tt.retries)
				}
				for i, b := range batches {
					if b.Number != i+2 || b.RetryCount != i {
						t.Errorf("batch %d: Number = %d, RetryCount = %d, want %d, %d", i, b.Number, b.RetryCount, i+2, i)
					}
				}
				if b := batches[0]; b.Status != tt.status || len(b.Calls) != tt.calls || (b.Err == nil) != (tt.calls > 0) {
					t.Errorf("the first batch has status %d, %d calls, error %v, want %d, %d", b.Status, len(b.Calls), b.Err, tt.status, tt.calls)
				}
				want := 4
				if tt.reason != "" {
					want = 1
					if n := client.Stats().ByReason[tt.reason]; n != 3 {
						t.Errorf("%d messages dropped as %s, want 3: %+v", n, tt.reason, client.Stats())
					}
				}
				if got := len(srv.Calls()); got != want {
					t.Errorf("%d calls accepted, want %d", got, want)
				}
			})
		})
	}
}

// On real sockets, a client gets the same answer from every step as in memory.
func TestEachStepIsTheSameOnSockets(t *testing.T) {
	for _, tt := range steps {
		t.Run(tt.name, func(t *testing.T) {
			// exchange posts a batch. It returns the status and the beginning of the body.
			exchange := func(srv *analyticstest.Server, transport *http.Transport, url string, hangs bool) (int, string, error) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(`{"batch":[]}`))
				if err != nil {
					t.Fatal(err)
				}
				if hangs && tt.status == 0 {
					next := len(srv.Batches()) + 1
					go func() { // ends with ctx
						srv.WaitBatches(ctx, next)
						cancel()
					}()
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					return 0, "", err
				}
				defer resp.Body.Close()
				if hangs {
					cancel()
				}
				body, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
				return resp.StatusCode, string(body), err
			}
			// takeStep opens a connection with one request. The server answers the next request
			// with the step.
			takeStep := func(srv *analyticstest.Server, transport *http.Transport, url string) (int, string, error) {
				transport.MaxResponseHeaderBytes = 64 << 10
				if status, _, err := exchange(srv, transport, url, false); status != 200 || err != nil {
					t.Fatalf("the first request: status %d, %v, want 200", status, err)
				}
				srv.SetScript(tt.step)
				return exchange(srv, transport, url, tt.hangs)
			}
			inMemory, srv := analyticstest.New(t), analyticstest.New(t)
			web := httptest.NewServer(srv)
			defer web.Close()
			wantStatus, wantBody, wantErr := takeStep(inMemory, inMemory.Transport(), web.URL)
			status, body, err := takeStep(srv, web.Client().Transport.(*http.Transport), web.URL)
			if status != wantStatus || body != wantBody || (err == nil) != (wantErr == nil) || status != tt.status {
				t.Errorf("got %d, %q, %v; in memory %d, %q, %v; want the status %d", status, body, err, wantStatus, wantBody, wantErr, tt.status)
			}
		})
	}
}

func TestRefuseAndUnreachableFailTheDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t, step.Refuse().After(3*time.Second), step.Unreachable(), step.Answer(200))
		web := &http.Client{Transport: srv.Transport()}
		post := func() (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			start := time.Now()
			req, err := http.NewRequestWithContext(ctx, "POST", "http://any.example/v1/batch", strings.NewReader(`{"batch":[]}`))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := web.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			return time.Since(start), err
		}
		if took, err := post(); !errors.Is(err, syscall.ECONNREFUSED) || took != 3*time.Second {
			t.Errorf("Refuse: %v after %v, want ECONNREFUSED after 3s", err, took)
		}
		if took, err := post(); !errors.Is(err, context.DeadlineExceeded) || took != 10*time.Second {
			t.Errorf("Unreachable: %v after %v, want a timeout after 10s", err, took)
		}
		if n := len(srv.Batches()); n != 0 {
			t.Errorf("%d batches received, want none", n)
		}
		if took, err := post(); err != nil || took != 0 {
			t.Errorf("Answer: %v after %v, want success at once", err, took)
		}
	})
}

// Calls made while the server refuses connections arrive once it accepts them. The client retries
// ten times, after random waits that exceed five seconds in total.
func TestCallsArriveOnceTheServerAcceptsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t, step.Refuse())
		client := newClient(srv)
		track(t, client, "e")
		time.AfterFunc(5*time.Second, func() { srv.SetScript() })
		start := time.Now()
		if err := client.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 5*time.Second || len(srv.Calls()) != 1 {
			t.Errorf("Flush took %v with %d calls, want 5s or more and 1", took, len(srv.Calls()))
		}
		client.Close()
	})
}

func TestAfterCountsFromTheEndOfUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		srv := analyticstest.New(t, step.Answer(200).Until(gate).After(2*time.Second))
		client := newClient(srv)
		track(t, client, "e")
		time.AfterFunc(5*time.Second, func() { close(gate) })
		start := time.Now()
		if err := client.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 7*time.Second {
			t.Errorf("answered after %v, want 7s", took)
		}
		client.Close()
	})
}

func TestWaitReturnsOnceEnoughHasArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t, step.Answer(503), step.Answer(200))
		client := newClient(srv)
		client.FlushAt = 1
		go func() {
			time.Sleep(time.Minute)
			track(t, client, "a")
		}()
		batches, err := srv.WaitBatches(t.Context(), 1)
		if err != nil || len(batches) != 1 || len(srv.Calls()) != 0 {
			t.Errorf("WaitBatches(1) = %d batches, %v with %d calls, want 1, nil with 0", len(batches), err, len(srv.Calls()))
		}
		calls, err := srv.Wait(t.Context(), 1)
		if err != nil || len(calls) != 1 || len(srv.Batches()) != 2 {
			t.Errorf("Wait(1) = %d calls, %v with %d batches, want 1, nil with 2", len(calls), err, len(srv.Batches()))
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if calls, err := srv.Wait(ctx, 2); !errors.Is(err, context.DeadlineExceeded) || len(calls) != 1 {
			t.Errorf("Wait(2) = %d calls, %v, want 1, DeadlineExceeded", len(calls), err)
		}
		if batches, err := srv.WaitBatches(ctx, 3); !errors.Is(err, context.DeadlineExceeded) || len(batches) != 2 {
			t.Errorf("WaitBatches(3) = %d batches, %v, want 2, DeadlineExceeded", len(batches), err)
		}
		client.Close()
	})
}

// post sends a body as some other client might.
func post(t *testing.T, srv *analyticstest.Server, body []byte, header ...string) int {
	t.Helper()
	req, err := http.NewRequest("POST", "http://collector.example/v1/import", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := srv.Transport().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestGzippedBatchesAreDecompressed(t *testing.T) {
	srv := analyticstest.New(t)
	const body = `{"batch":[{"type":"track","event":"e"}],"writeKey":"k","sentAt":"2026-03-04T05:06:07+0100"}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	io.WriteString(z, body)
	z.Close()
	if code := post(t, srv, packed.Bytes(), "Content-Encoding", "gzip", "X-Retry-Count", "2"); code != 200 {
		t.Fatalf("answered %d, want 200", code)
	}
	b := srv.Batches()[0]
	want := time.Date(2026, 3, 4, 4, 6, 7, 0, time.UTC)
	if !b.Gzip || string(b.Body) != body || b.WriteKey != "k" || b.RetryCount != 2 || !b.SentAt.Equal(want) || len(srv.Calls()) != 1 {
		t.Errorf("batch = %+v, want its body decompressed, with the write key, the time and the retry count", b)
	}
}

func TestServerRefusesInvalidBatches(t *testing.T) {
	tests := []struct {
		name   string
		body   string
		header []string
	}{
		{name: "empty"},
		{name: "cut JSON", body: `{"batch":[`},
		{name: "no batch", body: `{"type":"track"}`},
		{name: "null", body: `null`},
		{name: "a call that is a number", body: `{"batch":[{"type":"track"},17]}`},
		{name: "a call without type", body: `{"batch":[{"event":"e"}]}`},
		{name: "a field of the wrong type", body: `{"batch":[{"type":"track","event":3}]}`},
		{name: "not gzip", body: `{"batch":[]}`, header: []string{"Content-Encoding", "gzip"}},
		{name: "too large", body: `{"batch":[]}` + strings.Repeat(" ", analytics.MaxBatchSize-11)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := analyticstest.New(t, step.Answer(503), step.Answer(200))
			if code := post(t, srv, []byte(tt.body), tt.header...); code != 400 {
				t.Errorf("answered %d, want 400", code)
			}
			if b := srv.Batches()[0]; b.Err == nil || b.Calls != nil || b.Status != 400 || b.Time.IsZero() {
				t.Errorf("batch = %+v, want an error, no calls and 400", b)
			}
			if n := len(srv.Calls()); n != 0 {
				t.Errorf("%d calls accepted, want none", n)
			}
			// The invalid batch has not used a step of the script.
			if code := post(t, srv, []byte(`{"batch":[]}`)); code != 503 {
				t.Errorf("the next batch is answered %d, want 503", code)
			}
		})
	}
	t.Run("as large as allowed", func(t *testing.T) {
		srv := analyticstest.New(t)
		if code := post(t, srv, []byte(`{"batch":[]}`+strings.Repeat(" ", analytics.MaxBatchSize-12))); code != 200 {
			t.Errorf("answered %d, want 200", code)
		}
	})
	t.Run("GET", func(t *testing.T) {
		srv := analyticstest.New(t)
		resp, err := (&http.Client{Transport: srv.Transport()}).Get("http://collector.example/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 405 || len(srv.Batches()) != 0 {
			t.Errorf("answered %d with %d batches, want 405 and none", resp.StatusCode, len(srv.Batches()))
		}
	})
}

func TestCallsHasEachMessageIdOnce(t *testing.T) {
	srv := analyticstest.New(t)
	for range 2 {
		post(t, srv, []byte(`{"batch":[{"type":"track","messageId":"m","event":"a"},{"type":"track","messageId":"m","event":"b"},{"type":"track","event":"c"}]}`))
	}
	var got []string
	for _, c := range srv.Calls() {
		got = append(got, c.Event)
	}
	if d := cmp.Diff([]string{"a", "c", "c"}, got); d != "" {
		t.Errorf("events of Calls() (-want +got):\n%s", d)
	}
}

// Close ends requests and dials that hang, in memory and on sockets.
func TestCloseEndsHangingRequests(t *testing.T) {
	for _, tt := range []struct {
		name string
		step step.Step
	}{
		{"Hang", step.Hang()},
		{"HangReading", step.HangReading()},
		{"HalfClose", step.HalfClose()},
		{"After", step.Answer(200).After(time.Hour)},
		{"Until", step.Answer(200).Until(make(chan struct{}))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := analyticstest.NewServer(tt.step)
			web := httptest.NewServer(srv)
			defer web.Close()
			var wg sync.WaitGroup
			for _, transport := range []http.RoundTripper{srv.Transport(), web.Client().Transport} {
				wg.Go(func() {
					resp, err := (&http.Client{Transport: transport}).Post(web.URL, "", strings.NewReader(`{"batch":[]}`))
					if err == nil {
						resp.Body.Close()
						t.Errorf("answered %s, want an error", resp.Status)
					}
				})
			}
			if _, err := srv.WaitBatches(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			srv.Close()
			srv.Close()
			wg.Wait()
			if _, err := (&http.Client{Transport: srv.Transport()}).Get("http://collector.example"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dial after Close: %v, want ECONNREFUSED", err)
			}
			if resp, err := web.Client().Get(web.URL); err == nil {
				resp.Body.Close()
				t.Errorf("answered %s after Close, want an error", resp.Status)
			}
			if n := len(srv.Batches()); n != 2 {
				t.Errorf("%d batches after Close, want the 2 received", n)
			}
		})
	}
	t.Run("Unreachable", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := analyticstest.NewServer(step.Unreachable())
			time.AfterFunc(time.Hour, srv.Close)
			start := time.Now()
			_, err := (&http.Client{Transport: srv.Transport()}).Get("http://collector.example")
			if took := time.Since(start); !errors.Is(err, syscall.ECONNREFUSED) || took != time.Hour {
				t.Errorf("dial: %v after %v, want ECONNREFUSED after an hour", err, took)
			}
		})
	})
}

func TestClientsCanSendConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := analyticstest.New(t)
		const clients, calls = 4, 500
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				client := newClient(srv)
				for range calls {
					if err := client.Track(&analytics.Track{UserId: "u", Event: "e"}); err != nil {
						t.Error(err)
					}
				}
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		if got, err := srv.Wait(t.Context(), clients*calls); err != nil || len(got) != clients*calls {
			t.Errorf("Wait = %d calls, %v, want %d", len(got), err, clients*calls)
		}
		wg.Wait()
	})
}

func TestDiscardAcceptsEveryRequest(t *testing.T) {
	client := analytics.New("off")
	client.Transport = analyticstest.Discard{}
	for range 100 {
		track(t, client, "e")
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if s := client.Stats(); s.Delivered != 100 {
		t.Errorf("Stats() = %+v, want 100 delivered", s)
	}

	// Discard fulfills the contract of http.RoundTripper.
	resp, err := (&http.Client{Transport: analyticstest.Discard{}}).Get("http://collector.example")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("Get = %v, %v, want 200", resp, err)
	}
	resp.Body.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://collector.example", nil)
	if _, err := (analyticstest.Discard{}).RoundTrip(req); !errors.Is(err, context.Canceled) {
		t.Errorf("RoundTrip with a context that has ended = %v, want context.Canceled", err)
	}
	broken := errors.New("broken")
	req, _ = http.NewRequest("POST", "http://collector.example", &brokenBody{err: broken})
	if _, err := (analyticstest.Discard{}).RoundTrip(req); !errors.Is(err, broken) {
		t.Errorf("RoundTrip of a body that cannot be read = %v, want its error", err)
	}
	if b := req.Body.(*brokenBody); !b.closed {
		t.Error("RoundTrip did not close the body")
	}
}

type brokenBody struct {
	err    error
	closed bool
}

func (b *brokenBody) Read([]byte) (int, error) { return 0, b.err }
func (b *brokenBody) Close() error             { b.closed = true; return nil }
