package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// admin defines --admin, --admin-token and --json, and returns an action that runs do with a client.
func (c *command) admin(do action) action {
	c.jsonFlag()
	c.adminFlag()
	c.tokenFlag("admin", "`token` of the admin API, or file:PATH")
	return func(ctx context.Context) error { return c.ask(ctx, do) }
}

// adminFlag defines --admin. Without it and HOOKFERRY_ADMIN, the address comes from the variable of
// serve, HOOKFERRY_ADMIN_LISTEN, so that commands in the same container find the server.
func (c *command) adminFlag() *string {
	admin := c.set.String("admin", config.Default().Admin.Listen, "`URL` or host:port of the server's admin API")
	c.variable("admin", nil, "admin-listen")
	return admin
}

// tokenFlag defines --admin-token for the server that the flag called server names.
func (c *command) tokenFlag(server, usage string) {
	c.server = server
	c.set.String("admin-token", "", usage)
	c.variable("admin-token", nil)
}

// ask opens a client of the server and then runs do. Its errors tell the user what to do.
func (c *command) ask(ctx context.Context, do action) error {
	if err := c.openClient(); err != nil {
		return err
	}
	defer c.client.Close()
	err := do(ctx)
	host := c.client.Host()
	var dial *net.OpError
	var refused *api.Error
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("no server at %s: is 'hookferry serve' running? %s says where (%w)", host, originOf(c.set, c.server), dial.Err)
	case !errors.As(err, &refused):
		return err
	case refused.Code == api.CodeUnauthorized && c.text("admin-token") != "":
		return fmt.Errorf("%s does not take the token of %s", host, originOf(c.set, "admin-token"))
	case refused.Code == api.CodeUnauthorized:
		return fmt.Errorf("%s wants a token: see --admin-token", host)
	case refused.Code == api.CodeNotFound:
		return nothing(err)
	case refused.Field != "":
		return fmt.Errorf("%s", c.inFlags(refused.Error()))
	}
	return err
}

// keyOfFault matches the key of a field of the API where a fault begins.
var keyOfFault = regexp.MustCompile(`(^|; )([a-zA-Z]+)([^ :]*):? `)

// flagsOf are the flags whose values are in a field with another name.
var flagsOf = map[string]string{"endpoints": "url", "filter": "type"}

// inFlags returns the text of an error of the API with the flags of the command in place of the fields.
// Each fault is a line.
func (c *command) inFlags(text string) string {
	return keyOfFault.ReplaceAllStringFunc(text, func(key string) string {
		m := keyOfFault.FindStringSubmatch(key)
		name, part := flagsOf[m[2]], ""
		if name == "" {
			name, part = m[2], strings.TrimPrefix(m[3]+" ", ".") // where in a document
		}
		if c.set.Lookup(name) == nil {
			return key
		}
		return strings.Replace(m[1], "; ", "\n", 1) + "--" + name + ": " + strings.TrimLeft(part, " ")
	})
}

// openClient sets c.client.
func (c *command) openClient() error {
	address := c.text(c.server)
	if address == config.Off {
		return usagef("--%s: the server's admin API is switched off", c.server)
	}
	token, err := config.ReadSecret(c.text("admin-token"))
	if err != nil {
		return fmt.Errorf("--admin-token: %w", err)
	}
	if strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return usagef("--admin-token: has characters that no token has")
	}
	if c.client, err = api.NewClient(address, token.Reveal(), c.process.transport()); err != nil {
		return usagef("--%s: %v", c.server, err)
	}
	return nil
}

// soleDestination defines --destination for a command that works on one destination. The default is
// the result of onlyDestination.
func (c *command) soleDestination() func(context.Context) (string, error) {
	id := c.set.String("destination", "", "`id` of the destination; may be left out if there is only one")
	return func(ctx context.Context) (string, error) {
		if *id != "" {
			return *id, nil
		}
		return c.onlyDestination(ctx)
	}
}

// onlyDestination returns the id of the server's destination if there is exactly one.
func (c *command) onlyDestination(ctx context.Context) (string, error) {
	page, err := api.Do[api.Destinations](ctx, c.client, api.Request{Path: api.DestinationsPath, Query: url.Values{api.ParamLimit: {"1"}}})
	if err != nil {
		return "", err
	}
	if page.Total != 1 || len(page.Items) != 1 {
		return "", usagef("--destination: want an id; 'hookferry status' lists the %s destinations of the server", grouped(page.Total))
	}
	return page.Items[0].ID, nil
}
