package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/memqueue"
)

const serveHelp = `Usage: hookferry serve -webhook URL [flags]

Serve accepts calls of the HTTP tracking API, keeps them in the data folder,
and forwards each of them to the webhook URLs: to all of them at once, and as
often as it takes until one of them answers 2xx, for up to four hours.

A call is answered once it is on disk. Stopping serve, by SIGINT, SIGTERM or
kill -9, loses none of them; what was being delivered may be delivered again.
A second signal ends it at once.

Without -write-key, serve makes up a key and keeps it in the data folder, where
'hookferry send' finds it. Secrets are better given by environment: other
users of the machine can read the flags of a process.

Examples:
  hookferry serve -webhook http://localhost:9000/hook
  HOOKFERRY_SECRET=s3cret hookferry serve -listen localhost:8080 \
      -webhook https://a.example/hook -webhook https://b.example/hook \
      -header 'Authorization: Bearer t0ken'
`

// settings are what the flags of serve say, checked.
type settings struct {
	listen   string
	data     string
	writeKey string         // "": that of the data folder
	webhook  webhook.Config // but for the Queue and the Logger
	grace    time.Duration
	log      logOptions
}

// destinationID names the one destination in the store.
const destinationID = "default"

func serve(o *options) action {
	read := serveFlags(o)
	return func(ctx context.Context, _ []string, p process) error {
		s, err := read()
		if err != nil {
			return err
		}
		return runServer(ctx, s, s.log.logger(p.stderr))
	}
}

// serveFlags returns what makes settings of the flags, once they are read.
func serveFlags(o *options) func() (*settings, error) {
	listen := o.text("listen", ":8080", "`address` to accept calls on; without a host: on all of the machine's")
	data := o.text("data", defaultData, "`folder` for the data; made if missing")
	writeKey := o.text("write-key", "", "`key` that calls must carry; without it one is made up")
	urls := o.list("webhook", "`URL` to forward calls to, up to five; in the variable, separated by spaces", strings.Fields)
	headers := o.list("header", "`'Name: value'` to add to each webhook, up to five; in the variable, one a line", lines)
	secret := o.text("secret", "", "shared `secret` to sign webhooks with; without it they are not signed")
	standard := o.list("standard-secret", "`secret` to sign webhooks with by Standard Webhooks, beside -secret; whsec_ and base64; give it twice\n"+
		"while one replaces another; in the variable, separated by spaces", strings.Fields)
	name := o.text("name", webhook.DefaultServiceName, "service `name`, in the User-Agent of webhooks")
	allow := o.list("allow", "`addresses`, such as 10.0.0.0/8, that are not public and that the host name of a webhook\n"+
		"may resolve to nevertheless; in the variable, separated by spaces", strings.Fields)
	grace := o.duration("grace", 10*time.Second, "`time` that requests and attempts have to finish when serve is stopped")
	log := newLogOptions(o)
	return func() (*settings, error) {
		s := &settings{listen: *listen, data: *data, writeKey: *writeKey, grace: *grace, log: log}
		s.webhook.ServiceName = *name
		if s.data == "" {
			return nil, usagef("-data: empty; want a folder")
		}
		if strings.TrimSpace(s.writeKey) != s.writeKey || strings.Contains(s.writeKey, ":") {
			return nil, usagef("-write-key: white space around a key and colons in it are not allowed")
		}
		if len(*urls) == 0 {
			return nil, usagef("-webhook: want at least one URL to forward calls to, such as http://localhost:9000/hook")
		}
		for _, a := range *allow {
			prefix, err := netip.ParsePrefix(a)
			if err != nil {
				addr, addrErr := netip.ParseAddr(a)
				if addrErr != nil {
					return nil, usagef("-allow: %q is neither an address nor a prefix such as 10.0.0.0/8", a)
				}
				prefix = netip.PrefixFrom(addr, addr.BitLen())
			}
			s.webhook.AllowAddresses = append(s.webhook.AllowAddresses, prefix)
		}
		static, err := parseHeaders(*headers)
		if err != nil {
			return nil, err
		}
		destination := webhook.Destination{ID: destinationID, Secret: signature.Secret(*secret)}
		for _, s := range *standard {
			destination.StandardSecrets = append(destination.StandardSecrets, signature.Secret(s))
		}
		for _, u := range *urls {
			destination.Endpoints = append(destination.Endpoints, webhook.Endpoint{URL: u, Headers: static})
		}
		s.webhook.Destinations = []webhook.Destination{destination}
		// A trial, so that a mistake is found before anything is opened or made.
		trial := s.webhook
		trial.Queue = memqueue.New(memqueue.Config{})
		if _, err := webhook.New(trial); err != nil {
			return nil, flagError(err)
		}
		return s, nil
	}
}

// parseHeaders takes "Name: value" texts apart. No error repeats a value: it
// may be a credential.
func parseHeaders(texts []string) (map[string]string, error) {
	headers := map[string]string{}
	for i, text := range texts {
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return nil, usagef("-header: number %d has no colon; want 'Name: value'", i+1)
		}
		name = strings.TrimSpace(name)
		if _, twice := headers[name]; twice {
			return nil, usagef("-header: %q is given twice", name)
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}

// flagError says which flag a setting of the library came from.
func flagError(err error) error {
	var refused *webhook.ConfigError
	if !errors.As(err, &refused) {
		return err
	}
	field := strings.TrimPrefix(refused.Field, "Destinations[0].")
	var endpoint int
	if n, _ := fmt.Sscanf(field, "Endpoints[%d].", &endpoint); n == 1 {
		_, field, _ = strings.Cut(field, ".")
	}
	name, ok := strings.CutPrefix(field, "Headers[")
	switch {
	case ok:
		return usagef("-header: %s %s", strings.TrimSuffix(name, "]"), refused.Problem)
	case field == "Headers":
		return usagef("-header: %s", refused.Problem)
	case field == "URL":
		return usagef("-webhook: number %d %s", endpoint+1, refused.Problem)
	case field == "Endpoints":
		return usagef("-webhook: %s", refused.Problem)
	case strings.HasPrefix(field, "StandardSecrets"):
		return usagef("-standard-secret: %s", refused.Problem)
	case field == "ServiceName":
		return usagef("-name: %s", refused.Problem)
	default:
		return err
	}
}

// redacted is a webhook URL for the log: without user, query and fragment.
func redacted(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
