package main

import (
	"io"
	"log/slog"
)

// What the flags of a log may be; the first is the default.
var (
	logFormats = []string{"text", "json"}
	logLevels  = []string{"info", "debug", "warn", "error"}
)

const (
	logFormatUsage = "`form` of the log on standard error"
	logLevelUsage  = "lowest `level` that is logged"
)

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	settings := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, settings))
	}
	return slog.New(slog.NewTextHandler(w, settings))
}
