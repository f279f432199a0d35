package main

import (
	"bytes"
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

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/signature"
)

const listenHelp = `Listen receives webhooks on any path, prints each of them, says whether its
signatures are good, and if not, why, and answers 200. It is for trying things
out: it keeps nothing, and does not refuse a webhook that is wrongly signed.

With --from it follows a server elsewhere, by its admin API, and posts to --to
what that server accepts for a destination: the same body, once, signed with the
secrets given here.

Examples:
  hookferry listen
  hookferry listen --listen :9000 --secret s3cret
  HOOKFERRY_STANDARD_SECRET=whsec_... hookferry listen
  hookferry listen --status 503        # what is sent again, and when?
  hookferry listen --status 500 --times 3 --delay 2s
  hookferry listen --from https://hooks.example:8081 --to localhost:3000/hook
`

// listenGrace bounds how long a webhook that is being received holds up the
// end of listen.
const listenGrace = 2 * time.Second

func listen(o *options) action {
	address := o.text("listen", "localhost:9000", "`address` to receive webhooks on; without a host: on all of the machine's")
	status := o.number("status", http.StatusOK, 200, 599, "`status` to answer with")
	times := o.number("times", 0, 0, 1_000_000, "answer with --status, and wait for --delay, this `number` of times only; then answer 200 at once; 0: always")
	delay := o.duration("delay", 0, "`time` to wait before each answer")
	from := o.text("from", "", "`URL` or host:port of the admin API of a server whose webhooks are posted to --to")
	to := o.text("to", "", "`URL` to post them to, or host:port and a path")
	destination := o.text("destination", "", "those for the destination with this `id`; may be left out if the server has only one")
	asJSON := jsonFlag(o)
	// HOOKFERRY_LISTEN is where serve listens.
	o.noVariables()
	secrets := o.list("secret", "shared `secret` to check X-Signature with; give it twice while one replaces another", single)
	standard := o.list("standard-secret", "`secret` to check the signatures of Standard Webhooks with: whsec_ and base64, a public key, whpk_ and base64, or file:PATH; "+
		"with --from, to sign with: whsec_, or a private key, whsk_; may be repeated; in the variable, separated by spaces", strings.Fields)
	o.text("admin-token", "", "`token` of the admin API of --from, or file:PATH")
	return func(ctx context.Context, _ []string, p process) error {
		printer := &printer{out: p.stdout, status: *status, times: *times, delay: *delay, asJSON: *asJSON}
		for _, s := range *secrets {
			if s == "" {
				return usagef("--secret: empty; leave the flag out to check no signatures")
			}
			printer.secrets = append(printer.secrets, signature.Secret(s))
		}
		for _, text := range *standard {
			s, err := config.ReadSecret(text)
			if err != nil {
				return fmt.Errorf("--standard-secret: %w", err)
			}
			printer.standard = append(printer.standard, s)
		}
		announce := p.stdout
		if *asJSON {
			announce = p.stderr
		}
		if *from == "" {
			for _, name := range []string{"to", "destination"} {
				if o.Changed(name) {
					return usagef("--%s: is for --from", name)
				}
			}
			if err := signature.VerifyStandard(nil, nil, 0, printer.standard...); len(printer.standard) > 0 && err != signature.ErrMissing {
				return usagef(`--standard-secret: is not "whsec_" and the base64 of 24 to 64 bytes, nor "whpk_" and that of a public key`)
			}
			return receive(ctx, *address, printer, announce, p)
		}
		for _, name := range []string{"listen", "status", "times", "delay"} {
			if o.Changed(name) {
				return usagef("--%s: is not for --from, which receives nothing", name)
			}
		}
		f := &adminFlags{o, asJSON, "from"}
		return f.action(func(ctx context.Context, c *api.Client, _ []string, p process) error {
			r, err := newRelay(*to, printer, p)
			if err != nil {
				return err
			}
			return r.follow(ctx, c, *destination, announce)
		})(ctx, nil, p)
	}
}

// receive serves the printer until ctx is done.
func receive(ctx context.Context, address string, printer *printer, announce io.Writer, p process) error {
	listener, err := listenOn(ctx, address, p)
	if err != nil {
		return err
	}
	fmt.Fprintf(announce, "listening on http://%s (any path)\n", listener.Addr())
	served := make(chan error, 1)
	receiver := server.NewHTTP(printer, slog.New(slog.DiscardHandler))
	go func() { served <- receiver.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), listenGrace)
	defer cancel()
	if receiver.Shutdown(stop) != nil {
		receiver.Close()
	}
	<-served
	return nil
}

// listenOn opens the listener for a --listen flag.
func listenOn(ctx context.Context, address string, p process) (net.Listener, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, usagef("--listen: %q is not an address; want host:port or :port", address)
	}
	open := p.listen
	if open == nil {
		open = new(net.ListenConfig).Listen
	}
	listener, err := open(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return listener, nil
}

// maxPrinted is the size of the largest body that listen reads: 1 MB.
const maxPrinted = 1 << 20

// A printer is a receiver that prints the webhooks it is sent.
type printer struct {
	secrets  []signature.Secret // of X-Signature
	standard []signature.Secret // of Standard Webhooks
	status   int
	times    int // how many get that status, and the delay; 0 for all
	delay    time.Duration
	asJSON   bool

	mu   sync.Mutex // one webhook is printed at a time
	seen int        // how many were
	out  io.Writer
}

func (p *printer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPrinted))
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
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the delay may be longer; tests have none
	select {
	case <-time.After(delay):
		w.WriteHeader(status)
	case <-r.Context().Done():
	}
}

// take prints a webhook, and returns what it is answered with, and when.
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

// received is what listen --json prints of each webhook. What is not JSON is a
// string.
type received struct {
	At        time.Time `json:"at"`
	Signature string    `json:"signature,omitempty"`
	Answer    string    `json:"answer,omitempty"` // of --to
	Body      any       `json:"body"`
}

// print prints a webhook. The caller sees to it that one is printed at a time.
func (p *printer) print(r received, body []byte) {
	if !p.asJSON {
		text := fmt.Appendf(nil, "\n%s  %s  %s\n", r.At.Format(time.TimeOnly), describe(body), r.Signature+r.Answer)
		p.out.Write(appendPretty(text, body))
		return
	}
	r.At, r.Body = r.At.UTC(), string(body)
	if json.Valid(body) {
		r.Body = json.RawMessage(body)
	}
	printJSON(p.out, r)
}

// check says whether the signatures are good: that of X-Signature, those of Standard
// Webhooks, or both. Both are of the same body, so a good one shows that the body is
// what was signed.
func (p *printer) check(body []byte, h http.Header) string {
	plain := func(body []byte) error { return signature.Verify(body, h.Get(signature.Header), p.secrets...) }
	standard := func(body []byte) error { return signature.VerifyStandard(body, h, 0, p.standard...) }
	plainErr, standardErr := plain(body), standard(body)
	var found []string
	switch {
	case h.Get(signature.Header) == "":
	case len(p.secrets) == 0:
		found = append(found, "signed, but not checked: listen has no --secret")
	case plainErr == nil:
		found = append(found, "signature ok")
	case plainErr == signature.ErrMalformed:
		found = append(found, "X-Signature wrong: not 40 lower-case hex digits")
	default:
		found = append(found, "X-Signature wrong: "+mismatch(body, plain, standardErr == nil))
	}
	switch {
	case h.Get(signature.StandardSignature) == "":
	case len(p.standard) == 0:
		found = append(found, "signed by Standard Webhooks, but not checked: listen has no --standard-secret")
	case standardErr == nil:
		found = append(found, "Standard Webhooks signature ok")
	case standardErr == signature.ErrMismatch && !p.checkable(h):
		found = append(found, "webhook-signature wrong: of version "+versions(h)+", but v1 is checked with a shared secret, whsec_, and v1a with a public key, whpk_")
	case standardErr == signature.ErrMismatch:
		found = append(found, "webhook-signature wrong: "+mismatch(body, standard, plainErr == nil))
	default:
		found = append(found, fault(h, standardErr))
	}
	if len(found) == 0 {
		return "unsigned"
	}
	return strings.Join(found, ", ")
}

// mismatch says why a signature in its right form is not that of body: verify is nil
// for the body that was signed. whole says that another signature of body is good.
func mismatch(body []byte, verify func([]byte) error, whole bool) string {
	var compact bytes.Buffer
	switch {
	case whole:
		return "made with another secret; the other signature shows that the body is as it was signed"
	case json.Compact(&compact, body) == nil && verify(compact.Bytes()) == nil:
		return "the body was reformatted after it was signed: without white space the signature is good"
	}
	return "made with another secret, or of another body"
}

// fault says which header of Standard Webhooks is wrong, and how.
func fault(h http.Header, err error) string {
	headers := []string{signature.StandardID, signature.StandardTimestamp, signature.StandardSignature}
	for _, name := range headers {
		switch n := len(h.Values(name)); {
		case h.Get(name) == "":
			return name + " is missing"
		case n > 1:
			return fmt.Sprintf("%s is there %d times", name, n)
		}
	}
	seconds, wrong := strconv.ParseInt(h.Get(signature.StandardTimestamp), 10, 64)
	off := time.Since(time.Unix(seconds, 0)).Round(time.Second)
	switch {
	case wrong != nil:
		return "webhook-timestamp wrong: not a time in seconds since 1970"
	case err == signature.ErrTooOld:
		return fmt.Sprintf("webhook-timestamp wrong: %v ago, more than %v; it was sent again late, or a clock is wrong", off, signature.DefaultTolerance)
	case err == signature.ErrTooNew:
		return fmt.Sprintf("webhook-timestamp wrong: %v from now, more than %v; a clock is wrong", -off, signature.DefaultTolerance)
	}
	if has := versions(h); !strings.Contains(has, "v1") {
		return "webhook-signature wrong: neither v1 nor v1a, but " + has
	}
	return "webhook-signature wrong: not v1, and the base64 of 32 bytes, nor v1a, and that of 64; or webhook-id holds a full stop or a space"
}

// versions lists those of the signatures of Standard Webhooks.
func versions(h http.Header) string {
	var list []string
	for s := range strings.SplitSeq(h.Get(signature.StandardSignature), " ") {
		version, _, _ := strings.Cut(s, ",")
		list = append(list, clean(version))
	}
	return strings.Join(list, ", ")
}

// checkable reports whether there is a secret for one of the versions that h has.
func (p *printer) checkable(h http.Header) bool {
	has := strings.Split(versions(h), ", ")
	return slices.ContainsFunc(p.standard, func(s signature.Secret) bool {
		if strings.HasPrefix(string(s), "whpk_") {
			return slices.Contains(has, "v1a")
		}
		return slices.Contains(has, "v1")
	})
}
