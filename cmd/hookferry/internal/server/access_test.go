package server

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/collector"
)

// newAccessLog returns an access log, and a function that returns the lines since its last call.
func newAccessLog(sample int) (*accessLog, func() []string) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	l := &accessLog{logger: slog.New(h), sample: func() int { return sample }, client: func(*http.Request) string { return "192.0.2.1" }}
	return l, func() []string {
		lines := strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' })
		b.Reset()
		return lines
	}
}

func TestAccessLogLines(t *testing.T) {
	for _, tt := range []struct {
		name         string
		method, path string
		answered     collector.Answered
		want         string
	}{
		{"accepted", "POST", "/v1/batch", collector.Answered{Path: "/v1/batch", Source: "web", Status: 200, Accepted: 3, Rejected: 1, Size: 700, Took: 1234567},
			`level=INFO msg=request method=POST path=/v1/batch status=200 took=1.235ms client=192.0.2.1 source=web bytes=700 accepted=3 rejected=1`},
		{"refused", "POST", "/v1/track", collector.Answered{Path: "/v1/track", Source: "web", Status: 400, Code: "missing_field", Size: 2},
			`level=INFO msg=request method=POST path=/v1/track status=400 took=0s client=192.0.2.1 source=web code=missing_field bytes=2`},
		{"failed", "POST", "/v1/t", collector.Answered{Path: "/v1/t", Status: 503, Code: "unavailable"},
			`level=WARN msg=request method=POST path=/v1/t status=503 took=0s client=192.0.2.1 code=unavailable`},
		{"a write key in the path", "GET", "/v1/projects/s3cret/settings", collector.Answered{Path: "/v1/projects/...", Status: 200},
			`level=INFO msg=request method=GET path=/v1/projects/... status=200 took=0s client=192.0.2.1`},
		{"an unknown path", "POST", "/v1/s3cret\nx", collector.Answered{Status: 404, Code: "not_found"},
			`level=INFO msg=request method=POST path=other status=404 took=0s client=192.0.2.1 code=not_found`},
		{"an unknown method", "S3CRET", "/v1/t", collector.Answered{Path: "/v1/t", Status: 405, Code: "method_not_allowed"},
			`level=INFO msg=request method=other path=/v1/t status=405 took=0s client=192.0.2.1 code=method_not_allowed`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, lines := newAccessLog(1)
			r := httptest.NewRequest("GET", "/?key=s3cret", nil)
			r.Method, r.URL.Path = tt.method, tt.path
			r.SetBasicAuth("s3cret", "s3cret")
			l.answered(r, &tt.answered)
			if diff := cmp.Diff([]string{tt.want}, lines()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAccessLogSamplesSuccesses(t *testing.T) {
	r := httptest.NewRequest("POST", "/v1/t", nil)
	for sample, want := range map[int]int{0: 0, 1: 100, 10: 10} {
		l, lines := newAccessLog(sample)
		for range 100 {
			l.answered(r, &collector.Answered{Status: 200})
		}
		if got := len(lines()); got != want {
			t.Errorf("sample %d: %d lines for 100 requests, want %d", sample, got, want)
		}
		l.answered(r, &collector.Answered{Status: 400})
		if got := len(lines()); got != 1 {
			t.Errorf("sample %d: %d lines for a failed request, want 1", sample, got)
		}
	}
}

func TestAccessLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := newAccessLog(0)
		r := httptest.NewRequest("POST", "/v1/t", nil)
		for range 1000 {
			l.answered(r, &collector.Answered{Status: 401})
		}
		if got := len(lines()); got != maxAccess {
			t.Errorf("%d lines in a second, want %d", got, maxAccess)
		}
		time.Sleep(time.Second)
		l.answered(r, &collector.Answered{Status: 401})
		l.answered(r, &collector.Answered{Status: 401})
		got := lines()
		if len(got) != 2 || !strings.HasSuffix(got[0], " unlogged=900") || strings.Contains(got[1], "unlogged") {
			t.Errorf("after a second: %q, want two lines, the first with unlogged=900", got)
		}
	})
}
