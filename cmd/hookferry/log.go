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

func (l logOptions) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	// The choice allows nothing else than the names of levels.
	if err := level.UnmarshalText([]byte(*l.level)); err != nil {
		panic(err)
	}
	settings := &slog.HandlerOptions{Level: level}
	if *l.format == "json" {
		return slog.New(slog.NewJSONHandler(w, settings))
	}
	return slog.New(slog.NewTextHandler(w, settings))
}
