package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/signature"
)

func listen(c *command) action {
	address := c.set.String("listen", "localhost:9000", "`address` to receive webhooks on; without a host: on all of the machine's")
	status := c.number("status", http.StatusOK, 200, 599, "`status` to answer with")
	times := c.number("times", 0, 0, 1_000_000, "answer with --status, and wait for --delay, this `number` of times only; then answer 200 at once; 0: always")
	delay := c.duration("delay", 0, "`time` to wait before each answer")
	from := c.set.String("from", "", "`URL` or host:port of the admin API of a server whose webhooks are posted to --to")
	to := c.set.String("to", "", "`URL` to post them to, or host:port and a path")
	replay := c.set.String("replay", "", "`key` of a delivery of --from, posted once in place of what it accepts")
	destination := c.soleDestination()
	c.jsonFlag()
	secrets := c.set.StringArray("secret", nil, "shared `secret` to check X-Signature with, or file:PATH; give it twice while one replaces another")
	c.variable("secret", nil)
	standard := c.set.StringArray("standard-secret", nil, "`secret` to check the signatures of Standard Webhooks with: whsec_ and base64, a public key, whpk_ and base64, or file:PATH; "+
		"with --from, to sign with: whsec_, or a private key, whsk_; may be repeated; in the variable, separated by spaces")
	c.variable("standard-secret", strings.Fields)
	c.tokenFlag("from", "`token` of the admin API of --from, or file:PATH")
	return func(ctx context.Context) error {
		p := &printer{command: c, status: *status, times: *times, delay: *delay}
		var err error
		if p.secrets, err = readSecrets("secret", *secrets); err != nil {
			return err
		}
		if slices.Contains(p.secrets, "") {
			return usagef("--secret: empty; leave the flag out to check no signatures")
		}
		if p.standard, err = readSecrets("standard-secret", *standard); err != nil {
			return err
		}
		announce := c.process.stdout
		if c.json {
			announce = c.process.stderr
		}
		if *from == "" {
			for _, name := range []string{"to", "destination", "replay"} {
				if c.set.Changed(name) {
					return usagef("--%s: needs --from", name)
				}
			}
			return p.receive(ctx, *address, announce)
		}
		for _, name := range []string{"listen", "status", "times", "delay"} {
			if c.set.Changed(name) {
				return usagef("--%s: does not go with --from, which receives nothing", name)
			}
		}
		return c.ask(ctx, func(ctx context.Context) error {
			r, err := newRelay(*to, p)
			if err != nil {
				return err
			}
			if *replay != "" {
				return r.replay(ctx, *replay)
			}
			id, err := destination(ctx)
			if err != nil {
				return err
			}
			return r.follow(ctx, id, announce)
		})
	}
}

// receive serves webhooks with p until ctx is done.
func (p *printer) receive(ctx context.Context, address string, announce io.Writer) error {
	if err := signature.VerifyStandard(nil, nil, 0, p.standard...); len(p.standard) > 0 && err != signature.ErrMissing {
		return usagef(`--standard-secret: is not "whsec_" and the base64 of 24 to 64 bytes, nor "whpk_" and that of a public key`)
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return usagef("--listen: %q is not an address; want host:port or :port", address)
	}
	listener, err := p.command.process.listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(announce, "listening on http://%s (any path)\n", listener.Addr())
	served := make(chan error, 1)
	receiver := server.NewHTTP(p, slog.New(slog.DiscardHandler))
	go func() { served <- receiver.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if receiver.Shutdown(stop) != nil {
		receiver.Close()
	}
	<-served
	return nil
}

// A printer is an HTTP handler that prints the webhooks that it receives.
type printer struct {
	command  *command
	secrets  []signature.Secret // of X-Signature
	standard []signature.Secret // of Standard Webhooks
	status   int
	delay    time.Duration
	times    int // how many webhooks get this status and delay; 0 means all

	mu   sync.Mutex // guards seen and the output of command
	seen int        // webhooks received so far
}

func (p *printer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body could not be read, or is over 1 MB", http.StatusBadRequest)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "webhooks are sent by POST", http.StatusMethodNotAllowed)
		return
	}
	status, delay := p.take(body, r.Header)
	// The delay may be longer than the server's deadline.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	select {
	case <-time.After(delay):
		w.WriteHeader(status)
	case <-r.Context().Done():
	}
}

// take prints a webhook. It returns the status of the answer, and the delay before it.
func (p *printer) take(body []byte, h http.Header) (status int, delay time.Duration) {
	what := p.check(body, h)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen++
	status, delay = p.status, p.delay
	if p.times > 0 {
		if p.seen > p.times {
			status, delay = http.StatusOK, 0
		}
		what += fmt.Sprintf("  answered %d", status)
	}
	p.print(received{At: time.Now(), Signature: what}, body)
	return status, delay
}

// received is what listen --json prints. A body that is not JSON becomes a string.
type received struct {
	At        time.Time `json:"at"`
	Signature string    `json:"signature,omitempty"`
	Answer    string    `json:"answer,omitempty"` // the answer of the receiver in --to
	Body      any       `json:"body"`
}

// print prints a webhook. It must not be called concurrently.
func (p *printer) print(r received, body []byte) {
	at := r.At.Format(time.TimeOnly)
	r.At, r.Body = r.At.UTC(), string(body)
	if json.Valid(body) {
		r.Body = json.RawMessage(body)
	}
	p.command.output(r, func(s screen) {
		fmt.Fprintf(s, "\n%s  %s  %s\n%s", at, describe(body), r.Signature+r.Answer, pretty(body))
	})
}

// describedFields has the fields of a call that describe shows, each for one type of call or for all.
var describedFields = []struct{ kind, label, field string }{
	{"track", "", "event"}, {"page", "", "name"}, {"screen", "", "name"}, {"group", "group ", "groupId"},
	{"alias", "from ", "Previous ID"}, {"alias", "to ", "User ID"}, {"", "user ", "userId"}, {"", "anonymous ", "anonymousId"},
}

// describe summarizes a webhook in a few words: its type, the event, and the user.
func describe(body []byte) string {
	var call map[string]any
	if json.Unmarshal(body, &call) != nil {
		return fmt.Sprintf("not a JSON object (%d bytes)", len(body))
	}
	kind, _ := call["type"].(string)
	user, _ := call["userId"].(string)
	words := plain(cmp.Or(kind, "no type"))
	for _, d := range describedFields {
		value, _ := call[d.field].(string)
		switch {
		case value == "" || d.kind != "" && d.kind != kind || d.field == "anonymousId" && user != "":
		case d.label == "":
			words += "  " + strconv.Quote(value)
		default:
			words += "  " + d.label + plain(value)
		}
	}
	return words
}

// plain returns s, in quotes if s contains spaces, quotes or unprintable characters.
func plain(s string) string {
	quoted := strconv.Quote(s)
	if strings.ContainsFunc(s, unicode.IsSpace) || quoted[1:len(quoted)-1] != s {
		return quoted
	}
	return s
}
