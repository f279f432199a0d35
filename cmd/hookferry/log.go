package main

import (
	"io"
	"log/slog"
)

// logOptions are the flags that say what is logged, and how.
type logOptions struct{ format, level *string }

func newLogOptions(o *options) logOptions {
	return logOptions{
		format: o.choice("log-format", "`form` of the log on standard error", "text", "json"),
		level:  o.choice("log-level", "lowest `level` that is logged", "info", "debug", "warn", "error"),
	}
}

// slogLevel returns the level. The choice allows nothing else than the names of
// levels.
func (l logOptions) slogLevel() slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(*l.level)); err != nil {
		panic(err)
	}
	return level
}

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	settings := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, settings))
	}
	return slog.New(slog.NewTextHandler(w, settings))
}
