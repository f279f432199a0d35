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

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/signature"
)

// listenGrace bounds how long a webhook that is being received holds up the
// end of listen.
const listenGrace = 2 * time.Second

func listen(o *options) action {
	address := o.String("listen", "localhost:9000", "`address` to receive webhooks on; without a host: on all of the machine's")
	status := o.number("status", http.StatusOK, 200, 599, "`status` to answer with")
	times := o.number("times", 0, 0, 1_000_000, "answer with --status, and wait for --delay, this `number` of times only; then answer 200 at once; 0: always")
	delay := o.duration("delay", 0, "`time` to wait before each answer")
	from := o.String("from", "", "`URL` or host:port of the admin API of a server whose webhooks are posted to --to")
	to := o.String("to", "", "`URL` to post them to, or host:port and a path")
	destination := o.soleDestination()
	o.jsonFlag()
	secrets := o.StringArray("secret", nil, "shared `secret` to check X-Signature with; give it twice while one replaces another")
	o.variable("secret", nil)
	standard := o.StringArray("standard-secret", nil, "`secret` to check the signatures of Standard Webhooks with: whsec_ and base64, a public key, whpk_ and base64, or file:PATH; "+
		"with --from, to sign with: whsec_, or a private key, whsk_; may be repeated; in the variable, separated by spaces")
	o.variable("standard-secret", strings.Fields)
	o.tokenFlag("`token` of the admin API of --from, or file:PATH")
	// Flags that mean nothing without --from, and with it.
	sending, receiving := []string{"to", "destination"}, []string{"listen", "status", "times", "delay"}
	return func(ctx context.Context, c *call) error {
		p := &printer{out: c.stdout, status: *status, times: *times, delay: *delay, asJSON: c.json}
		for _, s := range *secrets {
			if s == "" {
				return usagef("--secret: empty; leave the flag out to check no signatures")
			}
			p.secrets = append(p.secrets, signature.Secret(s))
		}
		for _, text := range *standard {
			s, err := config.ReadSecret(text)
			if err != nil {
				return fmt.Errorf("--standard-secret: %w", err)
			}
			p.standard = append(p.standard, s)
		}
		announce := c.stdout
		if c.json {
			announce = c.stderr
		}
		if *from == "" {
			if i := slices.IndexFunc(sending, o.Changed); i >= 0 {
				return usagef("--%s: is for --from", sending[i])
			}
			if err := signature.VerifyStandard(nil, nil, 0, p.standard...); len(p.standard) > 0 && err != signature.ErrMissing {
				return usagef(`--standard-secret: is not "whsec_" and the base64 of 24 to 64 bytes, nor "whpk_" and that of a public key`)
			}
			return c.receive(ctx, *address, p, announce)
		}
		if i := slices.IndexFunc(receiving, o.Changed); i >= 0 {
			return usagef("--%s: is not for --from, which receives nothing", receiving[i])
		}
		return o.asking("from", func(ctx context.Context, c *call) error {
			r, err := newRelay(*to, p, c)
			if err != nil {
				return err
			}
			id, err := destination(ctx, c)
			if err != nil {
				return err
			}
			return r.follow(ctx, c.client, id, announce)
		})(ctx, c)
	}
}

// receive serves the printer until ctx is done.
func (c *call) receive(ctx context.Context, address string, p *printer, announce io.Writer) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return usagef("--listen: %q is not an address; want host:port or :port", address)
	}
	open := c.listen
	if open == nil {
		open = new(net.ListenConfig).Listen
	}
	listener, err := open(ctx, "tcp", address)
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
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), listenGrace)
	defer cancel()
	if receiver.Shutdown(stop) != nil {
		receiver.Close()
	}
	<-served
	return nil
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
