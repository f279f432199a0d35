package analytics_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	root "github.com/hookferry/analytics"
	"github.com/hookferry/analytics/analyticstest"
	analytics "github.com/hookferry/analytics/analyticsv3"
	"github.com/hookferry/analytics/step"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// This program is written for v3. Only its import is different.
func Example() {
	srv := analyticstest.NewServer()
	defer srv.Close()

	client, err := analytics.NewWithConfig("write-key", analytics.Config{Transport: srv.Transport()})
	if err != nil {
		log.Fatal(err)
	}
	err = client.Enqueue(analytics.Track{
		UserId:     "u-2041",
		Event:      "Order Completed",
		Properties: analytics.NewProperties().SetRevenue(39.95).Set("items", 3),
	})
	if err = errors.Join(err, client.Close()); err != nil {
		log.Fatal(err)
	}
	for _, c := range srv.Calls() {
		fmt.Println(c.Type, c.UserId, c.Event, c.Properties)
	}
	// Output: track u-2041 Order Completed map[items:3 revenue:39.95]
}

// An outcome is one call of a Callback.
type outcome struct {
	Message analytics.Message
	Err     error
}

// outcomes is a Callback that records its calls. It has no lock, so a test must have only one
// upload at a time.
type outcomes []outcome

func (o *outcomes) Success(m analytics.Message)            { *o = append(*o, outcome{m, nil}) }
func (o *outcomes) Failure(m analytics.Message, err error) { *o = append(*o, outcome{m, err}) }

// start returns a client that sends to srv, and the buffer with its log.
func start(t *testing.T, srv *analyticstest.Server, config analytics.Config) (analytics.Client, *bytes.Buffer) {
	t.Helper()
	var lines bytes.Buffer
	config.Transport, config.Logger = srv.Transport(), analytics.StdLogger(log.New(&lines, "", 0))
	client, err := analytics.NewWithConfig("write-key", config)
	if err != nil {
		t.Fatal(err)
	}
	return client, &lines
}

func TestCallbackGetsEachMessage(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	track := func(id, event string) analytics.Track {
		return analytics.Track{UserId: "u", Event: event, MessageId: id, Timestamp: at, Properties: analytics.Properties{"n": 1}}
	}
	sent := []analytics.Track{track("one", "a"), track("two", "b"), track("one", "c")}
	for _, tt := range []struct {
		name  string
		steps []step.Step
		lost  int // index of the lost message; -1 if all are lost, 3 if none is
	}{
		{"delivered", nil, 3},
		{"rejected", []step.Step{analyticstest.Reject(1)}, 1},
		{"refused", []step.Step{step.Answer(http.StatusBadRequest)}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var told outcomes
				client, _ := start(t, analyticstest.New(t, tt.steps...), analytics.Config{Callback: &told})
				for _, m := range sent {
					if err := client.Enqueue(m); err != nil {
						t.Fatal(err)
					}
				}
				var lost *root.UndeliveredError
				if err := client.Close(); errors.As(err, &lost) != (tt.lost != 3) {
					t.Errorf("Close() = %v, want an *UndeliveredError: %t", err, tt.lost != 3)
				}
				got := map[string]bool{}
				for _, o := range told {
					got[o.Message.(analytics.Track).Event] = o.Err != nil
				}
				want := map[string]bool{}
				for i, m := range sent {
					want[m.Event] = tt.lost == -1 || tt.lost == i
				}
				if diff := cmp.Diff(want, got); diff != "" || len(told) != len(sent) {
					t.Errorf("the callback was called %d times, want %d; lost messages (-want +got):\n%s", len(told), len(sent), diff)
				}
			})
		})
	}
}

// v3 finds some errors in the background and reports them to the callback and the log. This package
// does that, too, but Enqueue also returns the error.
func TestARefusedMessageIsReturnedLoggedAndReported(t *testing.T) {
	big := strings.Repeat("x", 40000)
	for _, tt := range []struct {
		name string
		m    analytics.Message
		want error // nil for any error
	}{
		{"too large", analytics.Track{UserId: "u", Event: "e", Properties: analytics.Properties{"text": big}}, analytics.ErrMessageTooBig},
		{"not a number", analytics.Track{UserId: "u", Event: "e", Properties: analytics.Properties{"n": math.NaN()}}, nil},
		{"long id", analytics.Group{UserId: "u", GroupId: "g", MessageId: strings.Repeat("x", 100)}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var told outcomes
			srv := analyticstest.New(t)
			client, lines := start(t, srv, analytics.Config{Callback: &told})
			err := client.Enqueue(tt.m)
			if err == nil || tt.want != nil && err != tt.want {
				t.Errorf("Enqueue() = %v, want %v", err, tt.want)
			}
			if len(told) != 1 || told[0].Err != err || reflect.TypeOf(told[0].Message) != reflect.TypeOf(tt.m) {
				t.Errorf("the callback got %v, want one failure with the error of Enqueue", told)
			}
			if text := lines.String(); strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "ERROR: "+err.Error()) || strings.Contains(text, big) {
				t.Errorf("logged %.200q, want one line with the error, and no value of the message", text)
			}
			if err := client.Close(); err != nil || len(srv.Calls()) != 0 {
				t.Errorf("Close() = %v, and %d calls arrived, want nil and none", err, len(srv.Calls()))
			}
		})
	}
}

// If a refused message has the id of an earlier one, the callback gets each message with its own
// outcome.
func TestARefusedMessageMayHaveAUsedID(t *testing.T) {
	var told outcomes
	client, _ := start(t, analyticstest.New(t), analytics.Config{Callback: &told})
	for _, value := range []float64{1, math.NaN()} {
		_ = client.Enqueue(analytics.Group{UserId: "u", GroupId: "g", MessageId: "one", Traits: analytics.Traits{"n": value}})
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || told[0].Err == nil || told[1].Err != nil || told[1].Message.(analytics.Group).Traits["n"] != 1.0 {
		t.Errorf("the callback got %v, want a failure, and then the success of the first message", told)
	}
}

// JSON cannot hold invalid UTF-8. So an id that has some changes, and is still found.
func TestCallbackGetsMessageWithInvalidID(t *testing.T) {
	var told outcomes
	srv := analyticstest.New(t)
	client, _ := start(t, srv, analytics.Config{Callback: &told})
	if err := client.Enqueue(analytics.Track{UserId: "u", Event: "e", MessageId: "one\xff\xfe"}); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || told[0].Err != nil || told[0].Message.(analytics.Track).MessageId != srv.Calls()[0].MessageId {
		t.Errorf("the callback got %v, want one success of the message with the id that was sent", told)
	}
}

func TestEnqueueReturnsErrTooManyRequestsAtMaxMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := start(t, analyticstest.New(t, step.Hang()), analytics.Config{})
		m := analytics.Track{UserId: "u", Event: "e", Properties: analytics.Properties{"text": strings.Repeat("x", 32000)}}
		var err error
		for n := 0; err == nil; n++ {
			if n*32000 > root.DefaultMaxMemory {
				t.Fatalf("%d messages were queued, want ErrTooManyRequests", n)
			}
			err = client.Enqueue(m)
		}
		if err != analytics.ErrTooManyRequests {
			t.Errorf("Enqueue() = %v, want %v", err, analytics.ErrTooManyRequests)
		}
		if err := client.Close(); err == nil {
			t.Error("Close() = nil, want an error that counts the lost messages")
		}
	})
}

func TestInvalidSettingsAreConfigErrors(t *testing.T) {
	t.Setenv("HOOKFERRY_ENDPOINT", "")
	t.Setenv("HOOKFERRY_WRITE_KEY", "")
	for _, tt := range []struct {
		name   string
		config analytics.Config
		field  string
	}{
		{"interval", analytics.Config{Interval: -1}, "Interval"},
		{"batch size", analytics.Config{BatchSize: -1}, "BatchSize"},
		{"endpoint", analytics.Config{Endpoint: "https://user:hunter2@collector.example"}, "Endpoint"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, err := analytics.NewWithConfig("k", tt.config)
			var refused analytics.ConfigError
			if client != nil || !errors.As(err, &refused) || refused.Field != tt.field || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("NewWithConfig() = %v, %v; want a ConfigError for %s, without the password", client, err, tt.field)
			}
		})
	}
	t.Run("write key", func(t *testing.T) {
		client := analytics.New("")
		var refused *root.ConfigError
		if err := client.Enqueue(analytics.Identify{UserId: "u"}); !errors.As(err, &refused) {
			t.Errorf("Enqueue() without a write key = %v, want a *ConfigError", err)
		}
		if err := client.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
	t.Run("environment", func(t *testing.T) {
		t.Setenv("HOOKFERRY_ENDPOINT", "collector.example")
		client := analytics.New("k")
		var refused analytics.ConfigError
		if err := client.Enqueue(analytics.Identify{UserId: "u"}); !errors.As(err, &refused) {
			t.Errorf("Enqueue() with an endpoint that is no URL = %v, want a ConfigError", err)
		}
		if err := client.Close(); err != nil {
			t.Errorf("Close() = %v, want nil", err)
		}
	})
}

func TestEnqueueDoesNotChangeMessagesOrTheDefaultContext(t *testing.T) {
	shared := &analytics.Context{Locale: "nb-NO", Library: analytics.LibraryInfo{Name: "mine"}, Extra: map[string]any{"region": "north"}}
	messages := func() []analytics.Message {
		context := &analytics.Context{App: analytics.AppInfo{Name: "shop"}, Extra: map[string]any{"locale": "en"}}
		return []analytics.Message{
			&analytics.Identify{UserId: "u", Context: context, Traits: analytics.Traits{"a": 1}},
			&analytics.Track{UserId: "u", Event: "e", Context: context, Properties: analytics.Properties{"a": 1}},
			&analytics.Page{UserId: "u"}, &analytics.Screen{UserId: "u"}, &analytics.Group{UserId: "u", GroupId: "g"},
			&analytics.Alias{UserId: "u", PreviousId: "p", Integrations: analytics.NewIntegrations().EnableAll()},
		}
	}
	srv := analyticstest.New(t)
	client, _ := start(t, srv, analytics.Config{DefaultContext: shared, Callback: &outcomes{}})
	sent := messages()
	for _, m := range sent {
		if err := client.Enqueue(m); err != nil {
			t.Error(err)
		}
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(messages(), sent); diff != "" {
		t.Errorf("messages after Enqueue (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(&analytics.Context{Locale: "nb-NO", Library: analytics.LibraryInfo{Name: "mine"}, Extra: map[string]any{"region": "north"}}, shared); diff != "" {
		t.Errorf("the default context (-before +after):\n%s", diff)
	}
	calls := srv.Calls()
	want := map[string]any{"app": map[string]any{"name": "shop"}, "locale": "en", "region": "north"}
	if diff := cmp.Diff(want, calls[1].Context); diff != "" {
		t.Errorf("the context of a call (-want +got):\n%s", diff)
	}
	want = map[string]any{"locale": "nb-NO", "region": "north"}
	if diff := cmp.Diff(want, calls[5].Context); diff != "" {
		t.Errorf("the context of a call without one (-want +got):\n%s", diff)
	}
}

func TestEnqueueRefusesNilMessages(t *testing.T) {
	client, _ := start(t, analyticstest.New(t), analytics.Config{})
	for _, m := range []analytics.Message{nil, (*analytics.Track)(nil), (*analytics.Alias)(nil)} {
		if err := client.Enqueue(m); err == nil {
			t.Errorf("Enqueue(%T nil) = nil, want an error", m)
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheLoggerGetsErrorsAndIfVerboseAttempts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verbose bool
		status  int
		want    string // part of the first log line
	}{
		{"errors", false, http.StatusBadRequest, "ERROR: msg=\"analytics: messages dropped\""},
		{"attempts, if verbose", true, http.StatusOK, "INFO: msg=\"analytics: batch delivered\""},
		{"nothing else", false, http.StatusOK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, lines := start(t, analyticstest.New(t, step.Answer(tt.status)), analytics.Config{Verbose: tt.verbose})
			if err := client.Enqueue(analytics.Identify{UserId: "u"}); err != nil {
				t.Fatal(err)
			}
			_ = client.Close() // the test checks only the log
			if !strings.HasPrefix(lines.String(), tt.want) || tt.want == "" && lines.Len() > 0 {
				t.Errorf("logged %q, want a first line that begins %q", lines, tt.want)
			}
		})
	}
}
