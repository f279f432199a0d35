package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// A slowBody returns lines, each after a pause, and then blocks.
type slowBody struct {
	lines int
	pause time.Duration
	done  <-chan struct{}
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.lines == 0 {
		<-b.done
		return 0, errors.New("the request has ended")
	}
	b.lines--
	time.Sleep(b.pause) // of the bubble's clock
	return copy(p, "\n"), nil
}

func (b *slowBody) Close() error { return nil }

func TestStreamsEndWhenTheServerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewClient("localhost:8081", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport = transport(func(r *http.Request) (*http.Response, error) {
			body := &slowBody{lines: 10, pause: lineTimeout - time.Second, done: r.Context().Done()}
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		})
		begin := time.Now()
		var last error
		for _, err := range Stream[Live](t.Context(), c, Request{Path: LivePath}, nil) {
			last = err
		}
		if last == nil || !strings.Contains(last.Error(), "no word from the server for 1m0s") {
			t.Errorf("Stream ended with %v, want that the server was silent", last)
		}
		// Empty lines keep the stream open.
		if took, want := time.Since(begin), 10*(lineTimeout-time.Second)+lineTimeout; took != want {
			t.Errorf("Stream ended after %v, want %v", took, want)
		}
	})
}

func TestDoGivesUpAfterTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := NewClient("localhost:8081", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		c.http.Transport = transport(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: &slowBody{done: r.Context().Done()}}, nil
		})
		begin := time.Now()
		if _, err := Do[Status](t.Context(), c, Request{Path: StatusPath}); err == nil || err.Error() != "no answer within 30s" {
			t.Errorf("Do returned %v, want that there was no answer within 30s", err)
		}
		if took := time.Since(begin); took != answerTimeout {
			t.Errorf("Do took %v, want %v", took, answerTimeout)
		}
		begin = time.Now()
		if _, err := Do[TestResult](t.Context(), c, Request{Path: TestPath, Timeout: TestTimeout}); err == nil || time.Since(begin) != TestTimeout {
			t.Errorf("Do ended after %v with %v, want an error after %v", time.Since(begin), err, TestTimeout)
		}
	})
}
