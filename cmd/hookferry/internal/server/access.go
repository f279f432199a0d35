package server

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hookferry/analytics/collector"
)

// maxAccess bounds how many failed requests a second are logged: a broken client may send thousands.
const maxAccess = 100

// An accessLog logs failed requests, up to maxAccess a second, and a sample of the successful ones,
// without secrets and bodies. An unknown path, which may contain a write key, is logged as "other".
type accessLog struct {
	logger *slog.Logger
	sample func() int // returns n to log one of n successful requests, 0 for none
	client func(*http.Request) string
	n      atomic.Uint64
	limit  logLimit
}

// A logLimit bounds the lines of a log. Its zero value is ready to use.
type logLimit struct {
	mu       sync.Mutex
	begin    time.Time // when the current period began
	logged   int       // lines logged in that period
	unlogged int       // lines left out since the last logged one
}

// pass reports whether to log a line, and how many lines were left out before it. It passes at most
// most lines in each period.
func (l *logLimit) pass(now time.Time, most int, period time.Duration) (ok bool, unlogged int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.begin) >= period {
		l.begin, l.logged = now, 0
	}
	if l.logged == most {
		l.unlogged++
		return false, 0
	}
	l.logged++
	unlogged, l.unlogged = l.unlogged, 0
	return true, unlogged
}

func (l *accessLog) answered(r *http.Request, a *collector.Answered) {
	level, unlogged := slog.LevelInfo, 0
	switch {
	case a.Status >= 500:
		level = slog.LevelWarn
		fallthrough
	case a.Status >= 400:
		var log bool
		if log, unlogged = l.limit.pass(time.Now(), maxAccess, time.Second); !log {
			return
		}
	default:
		if n := l.sample(); n == 0 || l.n.Add(1)%uint64(n) != 0 {
			return
		}
	}
	ctx := context.Background()
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := append(make([]slog.Attr, 0, 12),
		slog.String("method", loggedMethod(r.Method)), slog.String("path", cmp.Or(a.Path, "other")), slog.Int("status", a.Status),
		slog.Duration("took", a.Took.Round(time.Microsecond)), slog.String("client", l.client(r)))
	for _, attr := range [...]slog.Attr{
		slog.String("source", a.Source), slog.String("code", a.Code), slog.Int("bytes", a.Size),
		slog.Int("accepted", a.Accepted), slog.Int("rejected", a.Rejected), slog.Int("unlogged", unlogged),
	} {
		if v := attr.Value; !v.Equal(slog.StringValue("")) && !v.Equal(slog.IntValue(0)) {
			attrs = append(attrs, attr)
		}
	}
	l.logger.LogAttrs(ctx, level, "request", attrs...)
}

func loggedMethod(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	}
	return "other"
}
