package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/signature"
)

const serveHelp = `Usage: hookferry serve -webhook URL [flags]
       hookferry serve -config FILE [flags]

Serve accepts calls of the HTTP tracking API, keeps them in the data folder, or
in a database that any number of servers share (-queue), and forwards each of
them to the webhook URLs: to all of them at once, and as often as it takes until
one of them answers 2xx, for up to four hours.

A call is answered once it is on disk. Stopping serve, by SIGINT, SIGTERM or
kill -9, loses none of them; what was being delivered may be delivered again.
A second signal ends it at once.

What comes in and what goes out can be seen on a page, whose address serve
prints; the other commands ask the same listener, that of -admin-listen.

The flags are for one application that sends and one set of URLs. A file has
any number of them, with limits of their own, and is read again when it changes,
or on SIGHUP; 'hookferry config example' prints one. With it, the flags that are
not about sources and webhooks may be given too, and win.

Without -write-key, serve makes up a key and keeps it in the data folder, where
'hookferry send' finds it. Secrets are better given by environment: other
users of the machine can read the flags of a process.

Examples:
  hookferry serve -webhook http://localhost:9000/hook
  HOOKFERRY_SECRET=s3cret hookferry serve -listen localhost:8080 \
      -webhook https://a.example/hook -webhook https://b.example/hook \
      -header 'Authorization: Bearer t0ken'
  hookferry serve -config hookferry.yaml
  hookferry serve -config hookferry.yaml -queue file:/run/secrets/database-url
`

const defaultData = config.DefaultData

// onlyName names the one source and the one destination that flags describe.
const onlyName = "default"

func serve(o *options) action {
	read := serveFlags(o)
	return func(ctx context.Context, _ []string, p process) error {
		load, err := read(p.getenv)
		if err != nil {
			return err
		}
		settings, err := load()
		if err != nil {
			return flagErrors(o, err)
		}
		level := new(slog.LevelVar)
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)
		run := server.Options{
			Settings: settings,
			Reload:   reload,
			Level:    level,
			Logger:   newLogger(p.stderr, settings.Log.Format, level),
			Getenv:   p.getenv,
			Version:  version(),
			Listen:   p.listen,
			Dial:     p.dial,
		}
		run.MakeKey = func() (signature.Secret, error) {
			run.Logger.Info("no -write-key: calls must carry the key in the file", "file", filepath.Join(settings.Data, writeKeyFile))
			key, err := makeWriteKey(settings.Data)
			return signature.Secret(key), err
		}
		level.Set(settings.Log.Level)
		if settings.Path != "" {
			run.Load = load
		}
		err = server.Run(ctx, run)
		var setting *server.SettingError
		if errors.As(err, &setting) {
			if name := flagOf(setting.Key); name != "" && (settings.Path == "" || o.given()[name]) {
				return fmt.Errorf("-%s: %w", name, setting.Err)
			}
		}
		return err
	}
}

// serveFlags returns what reads the flags, and then what loads the settings,
// each time it is called.
func serveFlags(o *options) func(getenv func(string) string) (func() (*config.Settings, error), error) {
	def := config.Default()
	file := o.text("config", "", "YAML `file` with sources, destinations and all other settings")
	listen := o.text("listen", def.Listen, "`address` to accept calls on; without a host: on all of the machine's")
	admin := o.text("admin-listen", def.Admin.Listen, "`address` of the page and of the admin API; off: none")
	token := o.text("admin-token", "", "`token` that requests to it must carry, or file:PATH; required unless only this machine can reach it")
	data := o.text("data", def.Data, "`folder` for the data; made if missing")
	queue := o.text("queue", "", "`URL` of a PostgreSQL database, or of NATS servers, to keep calls in, or file:PATH; several servers may share it. Without it: the data folder")
	writeKey := o.text("write-key", "", "`key` that calls must carry; without it one is made up")
	urls := o.list("webhook", "`URL` to forward calls to, up to five; in the variable, separated by spaces", strings.Fields)
	headers := o.list("header", "`'Name: value'` to add to each webhook, up to five; in the variable, one a line", lines)
	secret := o.text("secret", "", "shared `secret` to sign webhooks with; without it they are not signed")
	standard := o.list("standard-secret", "`secret` to sign webhooks with by Standard Webhooks, beside -secret; whsec_ and base64; give it twice\n"+
		"while one replaces another; in the variable, separated by spaces", strings.Fields)
	name := o.text("name", def.Webhooks.Name, "service `name`, in the User-Agent of webhooks")
	allow := o.list("allow", "`addresses`, such as 10.0.0.0/8, that are not public and that the host name of a webhook\n"+
		"may resolve to nevertheless; in the variable, separated by spaces", strings.Fields)
	grace := o.duration("grace", def.Grace, "`time` that requests and attempts have to finish when serve is stopped")
	log := newLogOptions(o)
	return func(getenv func(string) string) (func() (*config.Settings, error), error) {
		// general puts the flags into s that go with a file too, all of them
		// or those that were given.
		given := o.given()
		general := func(s *config.Settings, all bool) error {
			set := func(name string, use func()) {
				if all || given[name] {
					use()
				}
			}
			set("listen", func() { s.Listen = *listen })
			set("admin-listen", func() { s.Admin.Listen = *admin })
			set("data", func() { s.Data = *data })
			set("grace", func() { s.Grace = *grace })
			set("log-format", func() { s.Log.Format = *log.format })
			set("log-level", func() { s.Log.Level = log.slogLevel() })
			var err error
			set("admin-token", func() { s.Admin.Token, err = config.ReadSecret(*token) })
			if err != nil {
				return usagef("-admin-token: %v", err)
			}
			set("queue", func() { s.Queue.URL, err = config.ReadSecret(*queue) })
			if err != nil {
				return usagef("-queue: %v", err)
			}
			return nil
		}
		if *file != "" {
			with := []string{"config", "listen", "admin-listen", "admin-token", "data", "queue", "grace", "log-format", "log-level"}
			for name := range given {
				if !slices.Contains(with, name) {
					return nil, usagef("-%s does not go with -config: the file says it", name)
				}
			}
			return func() (*config.Settings, error) {
				return config.Load(*file, getenv, func(s *config.Settings) error { return general(s, false) })
			}, nil
		}

		s := config.Default()
		if err := general(s, true); err != nil {
			return nil, err
		}
		s.Loaded = time.Now()
		s.Webhooks.Name = *name
		source := config.DefaultSource()
		source.Name, source.Destinations = onlyName, []string{onlyName}
		if *writeKey != "" {
			source.Keys = []signature.Secret{signature.Secret(*writeKey)}
		}
		s.Sources = []config.Source{source}
		if *queue != "" && *writeKey == "" {
			return nil, usagef("-write-key: is required with -queue, as all servers have to know the same")
		}
		if len(*urls) == 0 {
			return nil, usagef("-webhook: want at least one URL to forward calls to, such as http://localhost:9000/hook; or a file with -config")
		}
		for _, a := range *allow {
			prefix, err := config.ParsePrefix(a)
			if err != nil {
				return nil, usagef("-allow: %q: %v", a, err)
			}
			s.Webhooks.Allow = append(s.Webhooks.Allow, prefix)
		}
		static, err := parseHeaders(*headers)
		if err != nil {
			return nil, err
		}
		destination := config.DefaultDestination()
		destination.ID, destination.Secret = onlyName, signature.Secret(*secret)
		for _, s := range *standard {
			destination.StandardSecrets = append(destination.StandardSecrets, signature.Secret(s))
		}
		for _, u := range *urls {
			destination.Endpoints = append(destination.Endpoints, config.Endpoint{URL: signature.Secret(u), Headers: static})
		}
		s.Destinations = []config.Destination{destination}
		if err := s.Complete(); err != nil {
			return nil, flagErrors(o, err)
		}
		return func() (*config.Settings, error) { return s, nil }, nil
	}
}

// parseHeaders takes "Name: value" texts apart. No error repeats a value: it
// may be a credential.
func parseHeaders(texts []string) (map[string]signature.Secret, error) {
	headers := map[string]signature.Secret{}
	for i, text := range texts {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return nil, usagef("-header: number %d has no colon; want 'Name: value'", i+1)
		}
		name = strings.TrimSpace(name)
		if _, twice := headers[name]; twice {
			return nil, usagef("-header: %q is given twice", name)
		}
		headers[name] = signature.Secret(strings.TrimSpace(value))
	}
	return headers, nil
}

// flagErrors returns err with the flag or the variable that each wrong setting came
// from, and with the keys of those that are in the file.
func flagErrors(o *options, err error) error {
	var wrong *config.Error
	if !errors.As(err, &wrong) {
		return err
	}
	var flags, keys []string
	given := o.given()
	for _, p := range wrong.Problems {
		if name := flagOf(p.Key); given[name] || wrong.Path == "" {
			flags = append(flags, flagText(o, name, p.Key)+" "+p.Text)
		} else {
			keys = append(keys, wrong.Line(p))
		}
	}
	if len(flags) == 0 {
		return err
	}
	return &usageError{strings.Join(append(flags, keys...), "\n")}
}

// flagText names the flag or the variable of a setting, and which one of several it
// is.
func flagText(o *options, name, key string) string {
	origin := o.origin(name)
	if name == "webhook" {
		var number int
		if n, _ := fmt.Sscanf(key, "destinations[0].endpoints[%d].", &number); n == 1 {
			return fmt.Sprintf("%s: number %d", origin, number+1)
		}
	}
	if _, header, ok := strings.Cut(key, ".headers."); ok {
		return fmt.Sprintf("%s: %q", origin, header)
	}
	return origin + ":"
}

// flagOf returns the flag that a setting may come from, or "".
func flagOf(key string) string {
	switch {
	case strings.Contains(key, ".headers"):
		return "header"
	case strings.HasPrefix(key, "destinations[0].endpoints"):
		return "webhook"
	}
	key, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(key, "destinations[0]."), "sources[0]."), "[")
	return map[string]string{
		"listen": "listen", "data": "data", "queue.url": "queue", "grace": "grace", "admin.listen": "admin-listen", "admin.token": "admin-token",
		"webhooks.name": "name", "keys": "write-key", "secret": "secret", "standardSecrets": "standard-secret",
	}[key]
}
