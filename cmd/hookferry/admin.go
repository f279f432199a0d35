package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// adminFlags are those of a command that asks a running server.
type adminFlags struct {
	*options
	json *bool
	at   string // the name of the flag that says where the server is
}

// newAdminFlags defines them. The flags of o so far have no variables: they are
// about the call, as --json is.
func newAdminFlags(o *options) *adminFlags {
	f := &adminFlags{o, jsonFlag(o), "admin"}
	o.noVariables()
	adminFlag(o)
	o.text("admin-token", "", "`token` of the admin API, or file:PATH")
	return f
}

// adminFlag says where the server is. Where only serve's own variable is set, as in
// its container, that is where it listens.
func adminFlag(o *options) *string {
	admin := o.text("admin", config.Default().Admin.Listen, "`URL` or host:port of the server's admin API")
	o.SetAnnotation("admin", variables, []string{variable("admin"), variable("admin-listen")})
	return admin
}

func jsonFlag(o *options) *bool {
	return o.boolean("json", "print JSON, one value a line")
}

// An adminAction is an action that has the client of a server.
type adminAction func(ctx context.Context, c *api.Client, args []string, p process) error

func (f *adminFlags) action(do adminAction) action {
	return func(ctx context.Context, args []string, p process) error {
		c, err := f.client(f.at)
		if err != nil {
			return err
		}
		defer c.Close()
		return f.explained(do(ctx, c, args, p), c)
	}
}

// client returns the client of the server that the flag called at names.
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
	c, err := api.NewClient(admin, token.Reveal(), o.p.transport())
	if err != nil {
		return nil, usagef("--%s: %v", at, err)
	}
	return c, nil
}

// explained says what to do about an error, and which exit status it has.
func (f *adminFlags) explained(err error, c *api.Client) error {
	var dial *net.OpError
	var refused *api.Error
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("no server at %s: is 'hookferry serve' running? %s says where (%w)", c.Host(), f.origin(f.at), dial.Err)
	case !errors.As(err, &refused):
		return err
	case refused.Code == api.CodeUnauthorized && f.Lookup("admin-token").Value.String() != "":
		return fmt.Errorf("%s does not take the token of %s", c.Host(), f.origin("admin-token"))
	case refused.Code == api.CodeUnauthorized:
		return fmt.Errorf("%s wants a token: see --admin-token", c.Host())
	case refused.Code == api.CodeNotFound:
		return &nothingError{err}
	}
	return err
}

// theDestination is the one that is named, or the only one that there is.
func theDestination(ctx context.Context, c *api.Client, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	page, err := c.Destinations(ctx, api.DestinationFilter{}, 1, "")
	if err != nil {
		return "", err
	}
	if page.Total != 1 || len(page.Destinations) != 1 {
		return "", usagef("--destination: want the id of one; the server has %s, which 'hookferry status' lists", grouped(page.Total))
	}
	return page.Destinations[0].ID, nil
}
