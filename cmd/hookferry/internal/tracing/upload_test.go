package tracing

import (
	"compress/gzip"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// upload sends one span to what answers by handler, with variables, for at most
// half a minute of a bubble.
func upload(t *testing.T, handler http.HandlerFunc, env map[string]string) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network, url := serve(t, handler)
		u, uerr := newUploader(&Config{Endpoint: url + "/?secret", Dial: network.DialContext}, func(name string) string { return env[name] })
		if uerr != nil {
			t.Fatal(uerr)
		}
		defer u.Stop(context.Background())
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err = u.UploadTraces(ctx, []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "put"}}}}}})
	})
	return err
}

// What is sent again, and what is said of what was not taken.
func TestUpload(t *testing.T) {
	partial, err := proto.Marshal(&coltrace.ExportTraceServiceResponse{
		PartialSuccess: &coltrace.ExportTracePartialSuccess{RejectedSpans: 3, ErrorMessage: "full"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		status     int
		retryAfter string
		body       []byte // of all answers; the second one has the status 200
		tries      int
		err        string // a part of it
	}{
		{"taken", 200, "", nil, 1, ""},
		{"taken in part", 200, "", partial, 1, "rejected 3 spans"},
		{"an answer that is none", 200, "", []byte("\x0a\xff"), 1, ""},
		{"refused", 400, "", nil, 1, "400"},
		{"broken", 500, "0", nil, 1, "500"},
		{"elsewhere", 307, "", nil, 1, "307"},
		{"busy", 429, "", nil, 2, ""},
		{"no gateway", 502, "", nil, 2, ""},
		{"down for a second", 503, "1", nil, 2, ""},
		{"a slow gateway", 504, "", nil, 2, ""},
		{"down for longer than there is time", 503, "60", nil, 1, "503"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tries := 0
			err := upload(t, func(w http.ResponseWriter, r *http.Request) {
				tries++
				w.Header().Set("Content-Type", protobuf)
				w.Header().Set("Location", "/elsewhere")
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				if tries == 1 {
					w.WriteHeader(tt.status)
				}
				w.Write(tt.body)
			}, nil)
			if tries != tt.tries {
				t.Errorf("%d tries, want %d", tries, tt.tries)
			}
			if told := fmt.Sprint(err); (err == nil) != (tt.err == "") || !strings.Contains(told, tt.err) || strings.Contains(told, "secret") {
				t.Errorf("UploadTraces = %v, want %q", err, tt.err)
			}
		})
	}
}

// The variables of traces count more than the general ones, and what is sent is
// an ExportTraceServiceRequest.
func TestEnvironment(t *testing.T) {
	var export coltrace.ExportTraceServiceRequest
	var header http.Header
	err := upload(t, func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(z)
		if err != nil {
			t.Error(err)
		}
		if err := proto.Unmarshal(body, &export); err != nil {
			t.Error(err)
		}
	}, map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":        "api-key=general",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=a%20b, x=1",
		"OTEL_EXPORTER_OTLP_COMPRESSION":    "gzip",
	})
	if err != nil {
		t.Fatal(err)
	}
	if header.Get("Api-Key") != "a b" || header.Get("X") != "1" || header.Get("Content-Type") != protobuf {
		t.Errorf("sent with %q", header)
	}
	if len(export.ResourceSpans) != 1 || export.ResourceSpans[0].ScopeSpans[0].Spans[0].Name != "put" {
		t.Errorf("sent %v", &export)
	}
}

// The settings count more than the environment, whose variable of traces is the
// whole URL.
func TestTarget(t *testing.T) {
	const general, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, tt := range []struct {
		name, endpoint string
		env            map[string]string
		want           string // empty: an error
	}{
		{"settings", "https://u:p@a.example/base/?q", map[string]string{general: "http://b.example"}, "https://a.example/base/v1/traces"},
		{"environment", "", map[string]string{general: "http://b.example:4318"}, "http://b.example:4318/v1/traces"},
		{"environment, of traces", "", map[string]string{general: "http://b.example", traces: "http://c.example/x"}, "http://c.example/x"},
		{"no scheme", "", map[string]string{general: "b.example:4318"}, ""},
		{"no URL", "http://%zz", nil, ""},
	} {
		got, err := environment(func(name string) string { return tt.env[name] }).target(tt.endpoint)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: target = %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
}

// A receiver with a certificate of one's own is trusted by OTEL_EXPORTER_OTLP_CERTIFICATE.
func TestCertificate(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := newUploader(&Config{Endpoint: server.URL}, func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": file}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Stop(context.Background())
	if err := u.UploadTraces(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

// A variable that is wrong is named, its value is not.
func TestWrongEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":        "s3cret",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=s3cret%zz",
		"OTEL_EXPORTER_OTLP_TIMEOUT":        "10s3cret",
		"OTEL_EXPORTER_OTLP_CERTIFICATE":    filepath.Join(t.TempDir(), "missing"),
	} {
		_, err := newUploader(&Config{Endpoint: "http://a.example"}, func(n string) string {
			return map[string]string{name: value}[n]
		})
		if told := fmt.Sprint(err); !strings.Contains(told, name+": ") || strings.Contains(told, "s3cret") {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}
