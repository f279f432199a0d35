package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/server"
	"github.com/hookferry/analytics/signature"
)

const listenHelp = `Listen receives webhooks on any path, prints each of them, says whether its
signatures are good, and answers 200. It is for trying things out: it keeps
nothing, and does not refuse a webhook that is wrongly signed.

Examples:
  hookferry listen
  hookferry listen --listen :9000 --secret s3cret
  HOOKFERRY_STANDARD_SECRET=whsec_... hookferry listen
  hookferry listen --status 503        # what is sent again, and when?
`

// listenGrace bounds how long a webhook that is being received holds up the
// end of listen.
const listenGrace = 2 * time.Second

func listen(o *options) action {
	address := o.text("listen", "localhost:9000", "`address` to receive webhooks on; without a host: on all of the machine's")
	status := o.number("status", http.StatusOK, 200, 599, "`status` to answer with")
	asJSON := jsonFlag(o)
	// HOOKFERRY_LISTEN is where serve listens.
	o.noVariables()
	secrets := o.list("secret", "shared `secret` to check X-Signature with; give it twice while one replaces another", single)
	standard := o.list("standard-secret", "`secret` to check the signatures of Standard Webhooks with, whsec_ and base64; may be repeated; "+
		"in the variable, separated by spaces", strings.Fields)
	return func(ctx context.Context, _ []string, p process) error {
		printer := &printer{out: p.stdout, status: *status, asJSON: *asJSON}
		for _, s := range *secrets {
			if s == "" {
				return usagef("--secret: empty; leave the flag out to check no signatures")
			}
			printer.secrets = append(printer.secrets, signature.Secret(s))
		}
		for _, s := range *standard {
			if _, err := signature.NewStandardSigner(signature.Secret(s)); err != nil {
				return usagef(`--standard-secret: is not "whsec_" and the base64 of 24 to 64 bytes`)
			}
			printer.standard = append(printer.standard, signature.Secret(s))
		}
		announce := p.stdout
		if *asJSON {
			announce = p.stderr
		}
		return receive(ctx, *address, printer, announce, p)
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
	asJSON   bool

	mu  sync.Mutex // one webhook is printed at a time
	out io.Writer
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
	p.print(time.Now(), body, p.check(body, r.Header))
	w.WriteHeader(p.status)
}

// received is what listen --json prints of each webhook. What is not JSON is a
// string.
type received struct {
	At        time.Time `json:"at"`
	Signature string    `json:"signature"`
	Body      any       `json:"body"`
}

func (p *printer) print(at time.Time, body []byte, signature string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asJSON {
		text := fmt.Appendf(nil, "\n%s  %s  %s\n", at.Format(time.TimeOnly), describe(body), signature)
		p.out.Write(appendPretty(text, body))
		return
	}
	r := received{at.UTC(), signature, string(body)}
	if json.Valid(body) {
		r.Body = json.RawMessage(body)
	}
	printJSON(p.out, r)
}

// check says whether the signatures are good: that of X-Signature, those of Standard
// Webhooks, or both.
func (p *printer) check(body []byte, h http.Header) string {
	var found []string
	if given := h.Get(signature.Header); given != "" {
		if len(p.secrets) == 0 {
			found = append(found, "signed, but not checked: listen has no --secret")
		} else {
			found = append(found, holds("signature", "not 40 lower-case hex digits", signature.Verify(body, given, p.secrets...)))
		}
	}
	if h.Get(signature.StandardSignature) != "" {
		if len(p.standard) == 0 {
			found = append(found, "signed by Standard Webhooks, but not checked: listen has no --standard-secret")
		} else {
			found = append(found, holds("Standard Webhooks signature", "not v1, and the base64 of 32 bytes, with an id and a time in seconds",
				signature.VerifyStandard(body, h, 0, p.standard...)))
		}
	}
	if len(found) == 0 {
		return "unsigned"
	}
	return strings.Join(found, ", ")
}

// holds says whether a signature is good. malformed says what is wrong with one that
// does not have its form.
func holds(what, malformed string, err error) string {
	why := "made with another secret, or of another body"
	switch {
	case err == nil:
		return what + " ok"
	case errors.Is(err, signature.ErrMissing):
		why = "without webhook-id or webhook-timestamp"
	case errors.Is(err, signature.ErrMalformed):
		why = malformed
	case errors.Is(err, signature.ErrTooOld):
		why = "made more than 5 minutes ago"
	case errors.Is(err, signature.ErrTooNew):
		why = "made more than 5 minutes from now; a clock is wrong"
	}
	return what + " wrong: " + why
}
