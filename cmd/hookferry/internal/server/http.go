package server

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// The limits of the HTTP servers, which protect against slow clients. A request of a client has at
// most 500 KB, so readTimeout requires 17 KB a second. writeTimeout starts at the end of the
// header, so it includes the wait for the commit. Handlers of streams set their own limits.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 60 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
)

// NewHTTP returns an HTTP server with the limits above, such as headerTimeout.
func NewHTTP(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           logPanics(handler, logger),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// Peers cause the errors of connections, so these are only debug lines. net/http also
		// reports panics here, but logPanics has logged those already.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// logPanics logs a panic of next, which is a bug of the server. Then it cuts the connection, as
// net/http would do.
func logPanics(next http.Handler, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler: // the usual way to cut an answer that cannot be completed
				panic(v)
			default:
				logger.Error("a request panicked", "panic", v, "stack", string(debug.Stack()))
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", http.NotFound) // flags may hold secrets
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// localURL returns the URL at which this machine reaches a listener. The argument addr is the
// address of the listener, and listen is the setting for which the listener was opened.
func localURL(listen string, cert *config.Certificate, addr net.Addr) string {
	scheme := "http"
	if cert != nil {
		scheme = "https"
	}
	asked, _, _ := net.SplitHostPort(listen)
	host, port, _ := net.SplitHostPort(addr.String())
	if asked == "localhost" || net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
