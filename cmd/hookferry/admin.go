package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// admin defines --admin, --admin-token and --json. It returns an action that opens a client of the
// server and then runs do.
func (o *options) admin(do action) action {
	o.jsonFlag()
	o.adminFlag()
	o.tokenFlag("`token` of the admin API, or file:PATH")
	return o.asking("admin", do)
}

// adminFlag defines --admin. If neither --admin nor HOOKFERRY_ADMIN is set, the address comes from
// HOOKFERRY_ADMIN_LISTEN, the variable of serve. A container that runs serve has this variable, so
// other commands in the container find the server without a flag.
func (o *options) adminFlag() *string {
	admin := o.String("admin", config.Default().Admin.Listen, "`URL` or host:port of the server's admin API")
	o.variable("admin", nil, "admin-listen")
	return admin
}

func (o *options) tokenFlag(usage string) {
	o.String("admin-token", "", usage)
	o.variable("admin-token", nil)
}

// asking returns an action that opens a client of the server and then runs do. The argument at
// names the flag with the server's address. An error of the action says what to do, and has the
// exit status for it.
func (o *options) asking(at string, do action) action {
	return func(ctx context.Context, c *call) (err error) {
		if c.client, err = o.client(at); err != nil {
			return err
		}
		defer c.client.Close()
		err = do(ctx, c)
		host := c.client.Host()
		var dial *net.OpError
		var refused *api.Error
		switch {
		case errors.Is(err, context.Canceled):
			return errors.New("interrupted")
		case errors.As(err, &dial) && dial.Op == "dial":
			return fmt.Errorf("no server at %s: is 'hookferry serve' running? %s says where (%w)", host, o.origin(at), dial.Err)
		case !errors.As(err, &refused):
			return err
		case refused.Code == api.CodeUnauthorized && o.Lookup("admin-token").Value.String() != "":
			return fmt.Errorf("%s does not take the token of %s", host, o.origin("admin-token"))
		case refused.Code == api.CodeUnauthorized:
			return fmt.Errorf("%s wants a token: see --admin-token", host)
		case refused.Code == api.CodeNotFound:
			return nothing(err)
		}
		return err
	}
}

func (o *options) client(at string) (*api.Client, error) {
	admin, _ := o.GetString(at)
	text, _ := o.GetString("admin-token")
	if admin == config.Off {
		return nil, usagef("--%s: the server's admin API is switched off", at)
	}
	token, err := config.ReadSecret(text)
	if err != nil {
		return nil, fmt.Errorf("--admin-token: %w", err)
	}
	if strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, usagef("--admin-token: has characters that no token has")
	}
	c, err := api.NewClient(admin, token.Reveal(), o.process.transport())
	if err != nil {
		return nil, usagef("--%s: %v", at, err)
	}
	return c, nil
}

// soleDestination defines the flag --destination of a command for one destination. The returned
// function returns the id in the flag. Without the flag, it asks the server for its destinations,
// and returns the id if there is exactly one.
func (o *options) soleDestination() func(ctx context.Context, c *call) (string, error) {
	id := o.String("destination", "", "`id` of the destination; may be left out if there is only one")
	return func(ctx context.Context, c *call) (string, error) {
		if *id != "" {
			return *id, nil
		}
		return onlyDestination(ctx, c)
	}
}

func onlyDestination(ctx context.Context, c *call) (string, error) {
	page, err := api.Do[api.Destinations](ctx, c.client, api.Request{Path: api.DestinationsPath, Query: url.Values{api.ParamLimit: {"1"}}})
	if err != nil {
		return "", err
	}
	if page.Total != 1 || len(page.Destinations) != 1 {
		return "", usagef("--destination: want an id; 'hookferry status' lists the %s destinations of the server", grouped(page.Total))
	}
	return page.Destinations[0].ID, nil
}
