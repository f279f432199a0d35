package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
)

// TestRelayOutlivesRestarts shows that a relay resumes after its last event when the server is
// back. It prints how many events the server left out, and posts one event at a time. It ends
// once the server refuses its requests for good.
func TestRelayOutlivesRestarts(t *testing.T) {
	var asked, posted []string
	handle := http.NewServeMux()
	handle.HandleFunc("GET "+api.DestinationsPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"items":[{"id":"crm"}],"total":1}`)
	})
	handle.HandleFunc("GET "+api.DestinationPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":"crm"}`) })
	handle.HandleFunc("GET "+api.LivePath, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		event := func(seq int) string {
			return fmt.Sprintf(`{"event":{"seq":%d,"kind":"accepted","destination":"crm","id":"m%d","body":{"type":"track","event":"e%d"}}}`+"\n", seq, seq, seq)
		}
		switch len(asked) {
		case 1:
			io.WriteString(w, event(7)+`{"skipped":3}`+"\n"+event(11))
		case 2: // the server is stopping
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, `{"code":"unavailable","message":"stopping"}`)
		case 3:
			io.WriteString(w, event(12))
		default:
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"code":"unauthorized","message":"no"}`)
		}
	})
	handle.HandleFunc("POST /hook", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		posted = append(posted, r.Header.Get("webhook-id")+string(body))
		time.Sleep(20 * time.Second) // of the bubble's clock: somebody steps through the receiver's code
		w.WriteHeader(http.StatusAccepted)
	})
	inMemory(t, handle, func(t *testing.T, url string, p process) {
		var out, errs bytes.Buffer
		p.stdout, p.stderr = &out, &errs
		host := strings.TrimPrefix(url, "http://")
		status := run(t.Context(), []string{"listen", "--from", url, "--to", host + "/hook", "--standard-secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, p)
		if want := "hookferry listen: " + host + " wants a token: see --admin-token\n"; status != exitFailure || !strings.HasSuffix(errs.String(), want) {
			t.Errorf("exit status %d, printed %q, want %d and %q at the end", status, &errs, exitFailure, want)
		}
		filter := "destination=crm&kind=accepted"
		if diff := cmp.Diff([]string{filter, "after=11&" + filter, "after=11&" + filter, "after=12&" + filter}, asked); diff != "" {
			t.Errorf("queries of the requests for events (-want +got):\n%s", diff)
		}
		want := []string{`m7{"type":"track","event":"e7"}`, `m11{"type":"track","event":"e11"}`, `m12{"type":"track","event":"e12"}`}
		if diff := cmp.Diff(want, posted); diff != "" {
			t.Errorf("posted events (-want +got):\n%s", diff)
		}
		if n := strings.Count(out.String(), "answered 202 Accepted in 20.0s\n"); n != 3 || !strings.Contains(errs.String(), "3 more events left out") {
			t.Errorf("printed %q and %q, want three answers, and that 3 events were left out", &out, &errs)
		}
	})
}

// TestInterruptEndsRelayAtOnce shows that an interrupted relay ends at once and without an
// error, even while a receiver does not answer.
func TestInterruptEndsRelayAtOnce(t *testing.T) {
	handle := http.NewServeMux()
	handle.HandleFunc("GET "+api.DestinationsPath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"items":[{"id":"crm"}],"total":1}`)
	})
	handle.HandleFunc("GET "+api.DestinationPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id":"crm"}`) })
	handle.HandleFunc("GET "+api.LivePath, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"event":{"seq":1,"kind":"accepted","destination":"crm","id":"m","body":{"type":"track"}}}`+"\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	handle.HandleFunc("POST /hook", func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // otherwise net/http does not notice that the client is gone
		<-r.Context().Done()
	})
	inMemory(t, handle, func(t *testing.T, url string, p process) {
		p.stdout, p.stderr = io.Discard, io.Discard
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int, 1)
		go func() { ended <- run(ctx, []string{"listen", "--from", url, "--to", url + "/hook"}, p) }()
		synctest.Wait()
		begun := time.Now()
		cancel()
		if status := <-ended; status != exitOK || time.Since(begun) > 0 {
			t.Errorf("exit status %d after %v, want %d at once", status, time.Since(begun), exitOK)
		}
	})
}
