package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/receivertest"
	"github.com/hookferry/analytics/webhook"
)

func probe(c *command) action {
	secrets := c.StringArray("secret", nil, "shared `secret` of X-Signature; give it twice if the receiver accepts two")
	c.variable("secret", nil)
	standard := c.StringArray("standard-secret", nil, "`secret` of Standard Webhooks, in place of --secret: whsec_, or a private key, whsk_, and base64, or file:PATH; may be repeated; "+
		"in the variable, separated by spaces")
	c.variable("standard-secret", strings.Fields)
	changes := c.Bool("changes", false, "also run the checks that send signed test events, which the receiver applies")
	batches := c.Bool("batches", false, "the receiver takes batches of events")
	most := c.number("max-body", signature.DefaultMaxBody, 1<<10, 1<<30, "`bytes` of the largest body that the receiver takes")
	allow := c.StringArray("allow", nil, "`network`, such as 10.0.0.0/8, that names may resolve to although it is not public; may be repeated")
	c.jsonFlag()
	return func(ctx context.Context) error {
		config := receivertest.Config{URL: c.args[0], Batches: *batches, MaxBody: int64(*most)}
		u, err := webhook.ParseURL(config.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return usagef("want a URL such as https://example.com/hook, without a user")
		}
		if err := readSecrets(&config, *secrets, *standard); err != nil {
			return err
		}
		networks, err := readNetworks(*allow)
		if err != nil {
			return err
		}
		transport := c.transport()
		transport.Proxy = nil // it would dial in place of the guard
		if c.dial == nil {
			transport.DialContext = (&net.Dialer{ControlContext: guardDial(u, networks)}).DialContext
		}
		defer transport.CloseIdleConnections()
		config.Transport = transport
		return c.probe(ctx, u, config, *changes)
	}
}

// readSecrets sets the scheme and the secrets.
func readSecrets(c *receivertest.Config, plain, standard []string) error {
	if len(plain) > 0 == (len(standard) > 0) {
		return usagef("want --secret or --standard-secret, with the secret of the receiver")
	}
	for _, s := range plain {
		c.Secrets = append(c.Secrets, signature.Secret(s))
	}
	for _, text := range standard {
		s, err := config.ReadSecret(text)
		if err != nil {
			return fmt.Errorf("--standard-secret: %w", err)
		}
		c.Scheme, c.Secrets = signature.StandardWebhooks, append(c.Secrets, s)
	}
	if _, err := signature.NewStandardSigner(c.Secrets...); err != nil && c.Scheme == signature.StandardWebhooks {
		return usagef("--standard-secret: %v", err)
	}
	if slices.Contains(c.Secrets, "") {
		return usagef("--secret: empty")
	}
	return nil
}

func readNetworks(texts []string) (networks []netip.Prefix, err error) {
	for _, text := range texts {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usagef("--allow: %q is not a network such as 10.0.0.0/8", text)
		}
		networks = append(networks, n)
	}
	return networks, nil
}

// guardDial returns a check of each address that is dialed. As in the server, an address and
// "localhost" in the URL are the user's own, and other names resolve to public addresses only.
func guardDial(u *url.URL, allow []netip.Prefix) func(context.Context, string, string, syscall.RawConn) error {
	_, err := netip.ParseAddr(u.Hostname())
	literal, local := err == nil, strings.EqualFold(u.Hostname(), "localhost")
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		ip := a.Addr().Unmap().WithZone("")
		if literal || local && ip.IsLoopback() || webhook.IsPublic(ip) || slices.ContainsFunc(allow, func(n netip.Prefix) bool { return n.Contains(ip) }) {
			return nil
		}
		return &webhook.AddressError{Addr: ip}
	}
}

// probed is what probe --json prints for each check.
type probed struct {
	Check   string `json:"check"`
	Changes bool   `json:"changes"`        // it sends events that the receiver applies
	Result  string `json:"result"`         // ok, failed, left out
	Text    string `json:"text,omitempty"` // why
}

// probe runs the checks and prints a line for each.
func (c *command) probe(ctx context.Context, u *url.URL, config receivertest.Config, changes bool) error {
	if !c.json {
		c.screen(c.stdout).print("probe of %s at %s", u.Scheme+"://"+u.Host+u.Path, time.Now().UTC().Format(time.RFC3339))
	}
	ran, failed, asked := 0, 0, 0
	for _, check := range receivertest.Checks() {
		p := probed{check.Name, check.Changes, "left out", "it sends events that the receiver applies; --changes runs it"}
		if changes || !check.Changes {
			switch err := check.Run(ctx, config); {
			case ctx.Err() != nil:
				return errors.New("interrupted")
			case err == nil:
				p.Result, p.Text = "ok", ""
			case errors.Is(err, receivertest.ErrSkipped):
				p.Text = strings.TrimPrefix(err.Error(), receivertest.ErrSkipped.Error()+": ")
			default:
				failed++
				p.Result, p.Text = "failed", err.Error()
			}
		} else {
			asked++
		}
		if p.Result != "left out" {
			ran++
		}
		if err := c.output(p, func(s screen) { writeProbed(s, p) }); err != nil {
			return err
		}
	}
	if asked > 0 && !c.json {
		c.screen(c.stdout).print("%s left out that send events which the receiver applies; --changes runs them, with events marked as tests", counted(asked, "check"))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s failed", failed, counted(ran, "check"))
	}
	return nil
}

func writeProbed(s screen, p probed) {
	how := map[string]style{"ok": good, "failed": bad, "left out": faint}[p.Result]
	fmt.Fprintf(s, "%s  %s\n", s.paint(how, fmt.Sprintf("%-8s", p.Result)), p.Check)
	if p.Text != "" {
		for line := range strings.SplitSeq(p.Text, "\n") {
			s.print("          %s", line)
		}
	}
}
