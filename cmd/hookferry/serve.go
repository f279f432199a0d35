package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/signature"
)

// Settings from flags have one source and one destination. onlyName is the name of both.
const onlyName = "default"

// serveFlags has the flags of serve, except --config, with the setting that each sets. A flag whose
// key contains [] may be repeated, and split separates the values in its environment variable.
var serveFlags = []struct {
	name, key, value, usage string
	split                   func(string) []string
	values                  []string
}{
	{name: "listen", key: "listen", value: config.Default().Listen,
		usage: "`address` to accept calls on; without a host: on all of the machine's"},
	{name: "admin-listen", key: "admin.listen", value: config.Default().Admin.Listen,
		usage: "`address` of the page and of the admin API; off: none"},
	{name: "admin-token", key: "admin.token",
		usage: "`token` that requests to it must carry, or file:PATH; required unless only this machine can reach it"},
	{name: "data", key: "data", value: config.DefaultData,
		usage: "`folder` for the data; made if missing"},
	{name: "queue", key: "queue.url",
		usage: "`URL` of a PostgreSQL database, or of NATS servers, to keep calls in, or file:PATH; several servers may share it. Without it: the data folder"},
	{name: "grace", key: "grace", value: config.Default().Grace.String(),
		usage: "`time` that requests and attempts have to finish when serve is stopped"},
	{name: "log-format", key: "log.format", values: []string{"text", "json"}, usage: "`form` of the log on standard error"},
	{name: "log-level", key: "log.level", values: []string{"info", "debug", "warn", "error"}, usage: "lowest `level` that is logged"},
	{name: "name", key: "webhooks.name", value: config.Default().Webhooks.Name,
		usage: "service `name`, in the User-Agent of webhooks"},
	{name: "allow", key: "webhooks.allow[]", split: strings.Fields,
		usage: "`addresses`, such as 10.0.0.0/8, that are not public and that the host name of a webhook " +
			"may resolve to nevertheless; in the variable, separated by spaces"},
	{name: "write-key", key: "sources[0].keys[]",
		usage: "`key` that calls must carry, or file:PATH; without it one is made up"},
	{name: "publish-key", key: "tenants.keys[]", split: strings.Fields,
		usage: "`key` that may send events to every tenant, or file:PATH; in the variable, separated by spaces"},
	{name: "webhook", key: "destinations[0].endpoints[].url", split: strings.Fields,
		usage: "`URL` to forward calls to, or file:PATH, up to five; in the variable, separated by spaces"},
	{name: "header", key: "destinations[0].endpoints[].headers", split: lines,
		usage: "`'Name: value'` to add to each webhook, up to five; in the variable, one a line"},
	{name: "secret", key: "destinations[0].secret",
		usage: "shared `secret` to sign webhooks with, or file:PATH; without it they are not signed"},
	{name: "standard-secret", key: "destinations[0].standardSecrets[]", split: strings.Fields,
		usage: "`secret` to sign webhooks with by Standard Webhooks, or file:PATH, beside --secret; whsec_ and base64; give it twice " +
			"while one replaces another; in the variable, separated by spaces"},
}

func serve(c *command) action {
	c.set.String("config", "", "YAML `file` with sources, destinations and all other settings")
	c.variable("config", nil)
	for _, f := range serveFlags {
		switch {
		case strings.Contains(f.key, "[]"):
			c.set.StringArray(f.name, nil, f.usage)
		case f.values != nil:
			c.choice(f.name, f.values[0], f.usage, f.values, false)
		default:
			c.set.String(f.name, f.value, f.usage)
		}
		c.variable(f.name, f.split)
	}
	return func(ctx context.Context) error {
		load := func() (*config.Settings, error) { return serveSettings(c) }
		settings, err := load()
		if err != nil {
			return flagErrors(c, err)
		}
		level := new(slog.LevelVar)
		level.Set(settings.Log.Level)
		logger := func(to io.Writer) *slog.Logger {
			if settings.Log.Format == "json" {
				return slog.New(slog.NewJSONHandler(to, &slog.HandlerOptions{Level: level}))
			}
			return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
		}
		// Without this, a write to standard error after its reader has gone would end the process.
		signal.Ignore(syscall.SIGPIPE)
		lines := newLogWriter(c.process.stderr, func(count uint64) {
			logger(c.process.stderr).Warn("lines of the log were left out, because standard error could not be written; deliveries went on", "count", count)
		})
		defer lines.Close()
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)
		run := server.Options{
			Settings:        settings,
			Reload:          reload,
			Level:           level,
			Logger:          logger(lines),
			LogLinesLeftOut: lines.count,
			Getenv:          c.process.getenv,
			Version:         version(),
			Listen:          c.process.listen,
			Dial:            c.process.dial,
		}
		// Packages of others, such as net/http, log here.
		log.SetOutput(slog.NewLogLogger(run.Logger.Handler(), slog.LevelWarn).Writer())
		log.SetFlags(0)
		run.MakeKey = func() (signature.Secret, error) {
			run.Logger.Info("no --write-key: calls must carry the key in the file", "file", filepath.Join(settings.Data, writeKeyFile))
			key, err := makeWriteKey(settings.Data)
			return signature.Secret(key), err
		}
		if settings.Path != "" {
			run.Load = load
		}
		return flagErrors(c, server.Run(ctx, run))
	}
}

// serveSettings loads the settings from flags, or from a file. Flags override the file, except its
// lists.
func serveSettings(c *command) (*config.Settings, error) {
	put := func(s *config.Settings) error {
		for _, f := range serveFlags {
			if !c.set.Changed(f.name) || f.name == "header" {
				continue
			}
			for _, text := range c.texts(f.name) {
				if err := s.Set(f.key, text); err != nil {
					return usagef("--%s: %v", f.name, err)
				}
			}
		}
		return nil
	}
	if file := c.text("config"); file != "" {
		var wrong []string
		for _, f := range serveFlags {
			if c.set.Changed(f.name) && (strings.Contains(f.key, "[") || f.name == "name") {
				wrong = append(wrong, fmt.Sprintf("--%s does not go with --config: the file has this setting", f.name))
			}
		}
		if len(wrong) > 0 {
			return nil, usagef("%s", strings.Join(wrong, "\n"))
		}
		return config.Load(file, c.process.getenv, put)
	}

	s := config.Default()
	s.Loaded = time.Now()
	s.Sources, s.Destinations = []config.Source{{Name: onlyName, Destinations: []string{onlyName}}}, []config.Destination{{ID: onlyName}}
	if err := put(s); err != nil {
		return nil, err
	}
	if s.Queue.Shared() && len(s.Sources[0].Keys) == 0 {
		return nil, usagef("--write-key: is required with --queue, as all servers must have the same key")
	}
	endpoints := s.Destinations[0].Endpoints
	switch {
	case len(endpoints) == 0 && !onlyTenants(c):
		return nil, usagef("--webhook: want at least one URL to forward calls to, such as http://localhost:9000/hook; or a file with --config; or --publish-key, for tenants alone")
	case len(endpoints) == 0:
		s.Sources[0].Destinations, s.Destinations = nil, nil
	}
	headers, err := parseHeaders(c.texts("header"))
	if err != nil {
		return nil, err
	}
	for i := range endpoints {
		endpoints[i].Headers = headers
	}
	return s, s.Complete()
}

// onlyTenants reports whether the flags are for a server with tenants, and no destination of its own.
func onlyTenants(c *command) bool {
	ofDestination := slices.ContainsFunc([]string{"header", "secret", "standard-secret"}, c.set.Changed)
	return c.set.Changed("publish-key") && !ofDestination
}

// parseHeaders parses "Name: value" texts. No error repeats a value, which may be a credential.
func parseHeaders(texts []string) (map[string]string, error) {
	headers := map[string]string{}
	for i, text := range texts {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return nil, usagef("--header: number %d has no colon; want 'Name: value'", i+1)
		}
		name = strings.TrimSpace(name)
		if _, twice := headers[name]; twice {
			return nil, usagef("--header: %q is given twice", name)
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}

// flagErrors replaces the keys of wrong settings by the flags that set them. The lines of flags
// come first. Settings from the file keep their keys.
func flagErrors(c *command, err error) error {
	setBy := func(key string) string {
		if name := flagOf(key); c.text("config") == "" || c.set.Changed(name) {
			return name
		}
		return ""
	}
	if setting, ok := errors.AsType[*server.SettingError](err); ok && setBy(setting.Key) != "" {
		return fmt.Errorf("--%s: %w", setBy(setting.Key), setting.Err)
	}
	wrong, ok := errors.AsType[*config.Error](err)
	if !ok {
		return err
	}
	var flags, keys []string
	for _, p := range wrong.Problems {
		if name := setBy(p.Key); name != "" {
			flags = append(flags, "--"+name+": "+whichValue(name, p.Key)+p.Text)
		} else {
			keys = append(keys, wrong.Line(p))
		}
	}
	if len(flags) == 0 {
		return err
	}
	return usagef("%s", strings.Join(append(flags, keys...), "\n"))
}

// whichValue says which value of a repeated flag has the key, or returns "".
func whichValue(flag, key string) string {
	if _, header, ok := strings.Cut(key, ".headers."); ok {
		return fmt.Sprintf("%q ", header)
	}
	var i int
	if n, _ := fmt.Sscanf(key, "destinations[0].endpoints[%d].", &i); n == 1 && flag == "webhook" {
		return fmt.Sprintf("number %d ", i+1)
	}
	return ""
}

// flagOf returns the name of the flag that can set a key, or "". The key may also be the list that a
// flag appends to, or one of the headers.
func flagOf(key string) string {
	plain := func(key string) string { return index.ReplaceAllString(key, "") + "." }
	for _, f := range serveFlags {
		if strings.HasPrefix(f.key, key+"[") || strings.HasPrefix(plain(key), plain(f.key)) {
			return f.name
		}
	}
	return ""
}

// index matches the index of a list in a key.
var index = regexp.MustCompile(`\[\d*\]`)
