package server

import (
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// NewHTTP returns an HTTP server with limits against slow clients. Streams set other limits.
func NewHTTP(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           logPanics(handler, logger),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second, // for at most 500 KB, so 17 KB a second
		WriteTimeout:      60 * time.Second, // from the end of the header, so with the wait for the commit
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// Peers cause the errors of connections. Panics come here, too, but logPanics has logged them.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// logPanics logs a panic of next, which is a bug, and cuts the connection, as net/http would do.
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

// localURL returns the URL of a listener at addr, opened for the setting listen, on this machine.
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
