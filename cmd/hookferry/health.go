package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

func health(c *command) action {
	timeout := c.duration("timeout", 3*time.Second, "`time` that the answer may take")
	admin := c.adminFlag()
	return func(ctx context.Context) error {
		base, origin := *admin, "--admin"
		if base == config.Off {
			origin = variableOf("listen")
			base = cmp.Or(c.process.getenv(origin), config.Default().Listen)
		}
		u, err := api.ParseBase(base)
		if err != nil {
			return usagef("%s: %v", origin, err)
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("readyz").String(), nil)
		if err != nil {
			return err
		}
		transport := c.process.transport()
		transport.Proxy, transport.DisableKeepAlives = nil, true
		answer, err := transport.RoundTrip(r) // follows no redirect
		var dial *net.OpError
		switch {
		case errors.As(err, &dial) && dial.Op == "dial":
			return fmt.Errorf("no server at %s: %w", u.Host, dial.Err)
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("no answer from %s in time", u.Host)
		case err != nil:
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", u.Host, answer.Status)
		}
		return nil
	}
}
