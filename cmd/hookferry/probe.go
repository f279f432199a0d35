package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/signature/receivertest"
	"github.com/hookferry/analytics/webhook"
)

func probe(c *command) action {
	secrets := c.set.StringArray("secret", nil, "shared `secret` of X-Signature, or file:PATH; give it twice if the receiver accepts two")
	c.variable("secret", nil)
	standard := c.set.StringArray("standard-secret", nil, "`secret` of Standard Webhooks, in place of --secret: whsec_, or a private key, whsk_, and base64, or file:PATH; may be repeated; "+
		"in the variable, separated by spaces")
	c.variable("standard-secret", strings.Fields)
	changes := c.set.Bool("changes", false, "also run the checks that send signed test events, which the receiver applies")
	batches := c.set.Bool("batches", false, "the receiver takes batches of events")
	most := c.number("max-body", signature.DefaultMaxBody, 1<<10, 1<<30, "`bytes` of the largest body that the receiver takes")
	allow := c.set.StringArray("allow", nil, "`network`, such as 10.0.0.0/8, that names may resolve to although it is not public; may be repeated")
	event := c.set.String("event", "", "`file` with the body of an event that the receiver applies, with {id} where each event has its own id; without it, a track call")
	applied := c.set.String("applied", "", "shell `command` that prints how often the receiver has applied the event with the id {id}")
	c.jsonFlag()
	return func(ctx context.Context) error {
		config := receivertest.Config{URL: c.args[0], Batches: *batches, MaxBody: int64(*most)}
		u, err := webhook.ParseURL(config.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return usagef("want a URL such as https://example.com/hook, without a user")
		}
		if err := setSecrets(&config, *secrets, *standard); err != nil {
			return err
		}
		if config.Event, err = readEvent(*event); err != nil {
			return err
		}
		if *applied != "" {
			config.Applied = countApplied(*applied)
		}
		networks, err := readNetworks(*allow)
		if err != nil {
			return err
		}
		transport := c.process.transport()
		transport.Proxy = nil // it would dial in place of the guard
		if c.process.dial == nil {
			transport.DialContext = (&net.Dialer{ControlContext: guardDial(u, networks)}).DialContext
		}
		defer transport.CloseIdleConnections()
		config.Transport = transport
		return c.probe(ctx, u, config, *changes)
	}
}

// setSecrets sets the scheme and the secrets.
func setSecrets(c *receivertest.Config, plain, standard []string) error {
	if len(plain) > 0 && len(standard) > 0 {
		return usagef("want only one of --secret and --standard-secret: the scheme of this URL")
	}
	if len(plain) == 0 && len(standard) == 0 {
		return usagef("want --secret or --standard-secret, with the secret of the receiver")
	}
	var err error
	if c.Secrets, err = readSecrets("secret", plain); err != nil {
		return err
	}
	if len(standard) > 0 {
		c.Scheme = signature.StandardWebhooks
		if c.Secrets, err = readSecrets("standard-secret", standard); err != nil {
			return err
		}
	}
	if _, err := signature.NewStandardSigner(c.Secrets...); err != nil && c.Scheme == signature.StandardWebhooks {
		return usagef("--standard-secret: %v", err)
	}
	if slices.Contains(c.Secrets, "") {
		return usagef("--secret: empty")
	}
	return nil
}

// readSecrets returns the secrets that the values of a flag stand for, as config.ReadSecret does.
func readSecrets(flag string, texts []string) (secrets []signature.Secret, err error) {
	for _, text := range texts {
		s, err := config.ReadSecret(text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		secrets = append(secrets, s)
	}
	return secrets, nil
}

// idPlace stands for the id of an event, which consists of letters, digits and hyphens.
const idPlace = "{id}"

// readEvent returns a function that makes an event of a file, with its id in place of idPlace. It is
// nil without a file.
func readEvent(name string) (func(id string) []byte, error) {
	if name == "" {
		return nil, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--event: %w", err)
	}
	var object map[string]json.RawMessage
	var compact bytes.Buffer
	if json.Unmarshal(text, &object) != nil || json.Compact(&compact, text) != nil {
		return nil, usagef("--event: %s is not a JSON object", name)
	}
	if !bytes.Contains(text, []byte(idPlace)) {
		return nil, usagef(`--event: %s has no {id}, so all events would be the same one; put it where an event has its own id, such as {"type": "invoice.paid", "data": {"invoice": "{id}"}}`, name)
	}
	return func(id string) []byte { return bytes.ReplaceAll(compact.Bytes(), []byte(idPlace), []byte(id)) }, nil
}

// countApplied returns a function that asks a shell command how often an event was applied.
func countApplied(text string) func(context.Context, signature.Event) (int, error) {
	return func(ctx context.Context, e signature.Event) (int, error) {
		shell := []string{"sh", "-c"}
		if runtime.GOOS == "windows" {
			shell = []string{"cmd", "/C"}
		}
		out, err := exec.CommandContext(ctx, shell[0], shell[1], strings.ReplaceAll(text, idPlace, e.ID)).Output()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return 0, fmt.Errorf("--applied: %w: %s", err, clean(strings.TrimSpace(string(exit.Stderr))))
		}
		if err != nil {
			return 0, fmt.Errorf("--applied: %w", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil {
			return 0, fmt.Errorf("--applied: the command printed %q; want a number", out)
		}
		return n, nil
	}
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
		return fmt.Errorf("address %v is not public", ip)
	}
}

// probed is what probe --json prints for each check.
type probed struct {
	Check   string `json:"check"`
	Changes bool   `json:"changes"`        // it sends events that the receiver applies
	Result  string `json:"result"`         // ok, failed, left out
	Text    string `json:"text,omitempty"` // why
}

// reach sends one request without a signature. It returns an error if there is no receiver at the URL.
func reach(ctx context.Context, config receivertest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, config.URL, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := config.Transport.RoundTrip(r)
	switch {
	case err != nil:
		return fmt.Errorf("no answer; does the receiver run? %w", err)
	case a.StatusCode == http.StatusNotFound || a.StatusCode == http.StatusMethodNotAllowed:
		err = fmt.Errorf("answered %d to a POST without a signature; want 401; is the path right?", a.StatusCode)
	}
	a.Body.Close()
	return err
}

// probe runs the checks and prints a line for each.
func (c *command) probe(ctx context.Context, u *url.URL, config receivertest.Config, changes bool) error {
	if !c.json {
		c.process.screen(c.process.stdout).print("probe of %s at %s", u.Scheme+"://"+u.Host+u.Path, time.Now().UTC().Format(time.RFC3339))
	}
	if err := reach(ctx, config); err != nil {
		return err
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
	if s := c.process.screen(c.process.stdout); asked > 0 && !c.json {
		s.print("%s left out that send events which the receiver applies, so it is not known whether it accepts a good one; --changes runs them, with events marked as tests", counted(asked, "check"))
	} else if config.Applied == nil && !c.json {
		s.print("not known: whether the receiver applies an event once that comes twice; --applied counts")
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
