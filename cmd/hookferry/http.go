package main

import (
	"log/slog"
	"net/http"
	"time"
)

// The limits of the HTTP servers, against clients that are slow or never
// finish. A request is at most 500 KB, so that readTimeout asks for 17 KB a
// second of its sender. writeTimeout begins with the header's end and so
// covers the wait for a commit too.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 30 * time.Second
	writeTimeout  = 60 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
)

func newHTTPServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		// What goes wrong with a connection is the peer's doing.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
