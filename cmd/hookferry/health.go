package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

const healthHelp = `Health asks a running server whether it accepts calls, by its /readyz. It prints
nothing if it does, and fails if not: for the health checks of containers. Both
listeners of serve know the answer, so --admin may be the URL of either. With
HOOKFERRY_ADMIN_LISTEN=off it asks the other, at HOOKFERRY_LISTEN.

Examples:
  hookferry health
  hookferry health --admin http://localhost:8080 --timeout 1s
`

func health(o *options) action {
	timeout := o.duration("timeout", 3*time.Second, "`time` that the answer may take")
	o.noVariables()
	admin := adminFlag(o)
	return func(ctx context.Context, _ []string, p process) error {
		base, origin := *admin, "--admin"
		if base == config.Off {
			base, origin = cmp.Or(p.getenv(variable("listen")), config.Default().Listen), variable("listen")
		}
		u, err := api.ParseBase(base)
		if err != nil {
			return usagef("%s: %v", origin, err)
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		transport := p.transport()
		transport.Proxy, transport.DisableKeepAlives = nil, true
		return ready(ctx, u.JoinPath("readyz"), transport)
	}
}

// ready returns nil if what is at u answers 200.
func ready(ctx context.Context, u *url.URL, transport http.RoundTripper) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	a, err := client.Do(r)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("no server at %s: %w", u.Host, dial.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer from %s in time", u.Host)
	case err != nil:
		return err
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", u.Host, a.Status)
	}
	return nil
}
