package server

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// TestPanicsAreLogged shows that the server logs a panic of a handler, and that the panic ends
// only its own request. The server does not log http.ErrAbortHandler, which ends an answer on
// purpose.
func TestPanicsAreLogged(t *testing.T) {
	for _, tt := range []struct {
		name  string
		value any
		want  string
	}{
		{"a panic", "out of tokens", `msg="a request panicked" panic="out of tokens" stack=`},
		{"an aborted answer", http.ErrAbortHandler, ""},
	} {
		bubble(t, func(t *testing.T, w *world) {
			var log bytes.Buffer
			server := w.serve(NewHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(tt.value) }), slog.New(slog.NewTextHandler(&log, nil))))
			if _, err := w.client.Get(server.URL); err == nil || !strings.HasSuffix(err.Error(), io.EOF.Error()) {
				t.Errorf("%s: the client got %v, want %v", tt.name, err, io.EOF)
			}
			server.Close() // waits for the handler
			if got := log.String(); !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
				t.Errorf("%s: the log is %q, want %q", tt.name, got, tt.want)
			}
		})
	}
}
