package analytics

import (
	"context"
	"log"
	"log/slog"
	"os"
	"strings"
)

// A Logger gets the log lines of a client. Its methods may be called from several
// goroutines at once.
type Logger interface {
	Logf(format string, args ...any)   // information
	Errorf(format string, args ...any) // warnings and errors
}

// StdLogger returns a Logger that writes to logger, with INFO or ERROR before each line.
func StdLogger(logger *log.Logger) Logger { return stdLogger{logger} }

type stdLogger struct{ log *log.Logger }

func (l stdLogger) Logf(format string, args ...any)   { l.log.Printf("INFO: "+format, args...) }
func (l stdLogger) Errorf(format string, args ...any) { l.log.Printf("ERROR: "+format, args...) }

func defaultLogger() Logger { return StdLogger(log.New(os.Stderr, "analytics ", log.LstdFlags)) }

// A line is an io.Writer that passes each line to Logf or Errorf.
type line func(format string, args ...any)

func (l line) Write(p []byte) (int, error) {
	l("%s", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// A handler passes the log of the root package to a Logger: warnings and errors to Errorf,
// the rest to Logf.
type handler struct {
	slog.Handler // to Logf
	trouble      slog.Handler
}

func newHandler(l Logger, verbose bool) slog.Handler {
	options := &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{} // Loggers add a time and a level of their own
		}
		return a
	}}
	if verbose {
		options.Level = slog.LevelDebug
	}
	return handler{slog.NewTextHandler(line(l.Logf), options), slog.NewTextHandler(line(l.Errorf), options)}
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		return h.trouble.Handle(ctx, r)
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.trouble.WithAttrs(attrs)}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.trouble.WithGroup(name)}
}
