// Package receivertest tests a receiver of webhooks. It sends what senders send, and what only
// attackers send.
//
//	func TestReceiver(t *testing.T) {
//		receivertest.Run(t, handler, receivertest.Config{
//			Scheme:  signature.StandardWebhooks,
//			Secrets: []signature.Secret{secret},
//			Applied: func(ctx context.Context, e signature.Event) (n int, err error) {
//				err = db.QueryRowContext(ctx, "SELECT count(*) FROM orders WHERE event = $1", e.ID).Scan(&n)
//				return n, err
//			},
//		})
//	}
//
// Each check has a sentence that holds for a good receiver. A check that fails says what a sender
// would see. [Checks] runs them one by one against the URL of a receiver in any language, as
// hookferry probe does.
//
// All events are tests: their ids and messageIds begin with "test-", their user is "test-user", and
// the types that are not of the contract begin with "test.".
package receivertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
)

// Config describes a receiver.
type Config struct {
	// URL is the URL of the receiver. Empty means http://receiver.test, for Run.
	URL string
	// Transport sends the requests of Check.Run. Nil means http.DefaultTransport. Run calls the
	// handler instead.
	Transport http.RoundTripper
	// Secrets are all secrets that the receiver accepts, and sign the events: there are two while
	// one replaces another. Those of Standard Webhooks begin with "whsec_", or "whsk_" for a
	// private key. Required.
	Secrets []signature.Secret
	// Scheme is the scheme of the secrets. Zero means X-Signature, which signs neither id nor time.
	Scheme signature.Scheme
	// Tolerance is how old an event may be. Zero means signature.DefaultTolerance.
	Tolerance time.Duration
	// MaxBody is a size in bytes. The receiver has to refuse a body with one byte more. Zero means
	// signature.DefaultMaxBody.
	MaxBody int64
	// Batches says that the receiver takes batches.
	Batches bool
	// Event returns the body of an event that the receiver applies: a JSON object without optional
	// white space. It puts the id, which is the event's id, into the body: as the messageId if there
	// is one, or somewhere in the data. Nil means a call of Track by "test-user", whose event is
	// "Test Event".
	Event func(id string) []byte
	// Applied returns how often an event was applied, as any connection to the database sees it.
	// X-Signature sends no ids, so find the event by the data that Event has put into its body. Nil
	// leaves out all checks that need Applied.
	Applied func(ctx context.Context, e signature.Event) (int, error)
	// Restart returns the handler of a new process with the same database. Later checks use that
	// handler, so Fail must work on it. Nil leaves out the checks of restarts. Only Run uses it.
	Restart func() http.Handler
	// Fail makes the effects of events fail from now on, or succeed again: those of the handler that
	// Restart returned last, if it was called. Nil leaves out the check.
	Fail func(fail bool)
}

// A Check is one sentence about receivers.
type Check struct {
	Name string
	// Changes says that the check sends signed events, which a good receiver applies.
	Changes bool

	needs need
	run   func(*kit)
}

// A need is what Config must have for a check.
type need uint8

const (
	standard need = 1 << iota // Standard Webhooks
	secrets                   // two secrets
	batches
	applied
	handler // a handler in this process
	restart
	fail
	messageID
)

// Checks returns all checks, in the order in which Run runs them.
func Checks() []Check { return slices.Concat(signatureChecks, eventChecks, onceChecks) }

// ErrSkipped is the error of a check that does not apply. Its text says why.
var ErrSkipped = errors.New("left out")

// Run runs the check. The error has a line for each fault, with what a sender would see; it wraps
// ErrSkipped if Config lacks what the check needs. A receiver has five seconds to answer a request,
// as the Forwarder gives it.
func (c Check) Run(ctx context.Context, config Config) error {
	k := &kit{ctx: ctx, Config: config}
	if k.Transport == nil {
		k.Transport = http.DefaultTransport
	}
	if k.Tolerance == 0 {
		k.Tolerance = signature.DefaultTolerance
	}
	if k.MaxBody == 0 {
		k.MaxBody = signature.DefaultMaxBody
	}
	if k.Event == nil {
		k.Event = track
	}
	if err := k.checkEvent(); err != nil {
		return err
	}
	if why := k.lacks(c.needs); why != "" {
		return skipped(why)
	}
	if err := k.sign(http.Header{}, &request{id: "test", at: time.Now(), by: config.Secrets}); err != nil {
		return err
	}
	c.run(k)
	if len(k.faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(k.faults, "\n"))
}

// checkEvent checks that two ids have two bodies. A signature of one is good for the other else.
func (k *kit) checkEvent() error {
	if bytes.Equal(k.Event("test-1"), k.Event("test-2")) {
		return errors.New("receivertest: Config.Event returned one body for two ids: put the id into it")
	}
	return nil
}

// hasMessageID reports whether the id of an event is its messageId.
func (k *kit) hasMessageID() bool {
	var message struct{ MessageID string }
	return json.Unmarshal(k.Event("test"), &message) == nil && message.MessageID != ""
}

type skipped string

func (s skipped) Error() string     { return ErrSkipped.Error() + ": " + string(s) }
func (s skipped) Is(err error) bool { return err == ErrSkipped }

// lacks says which need of a check is not met.
func (k *kit) lacks(n need) string {
	_, inProcess := k.Transport.(*handlerTransport)
	for _, l := range []struct {
		need need
		has  bool
		why  string
	}{
		{standard, k.Scheme == signature.StandardWebhooks, "X-Signature signs neither id nor time"},
		{secrets, len(k.Secrets) > 1, "there is one secret"},
		{batches, k.Batches, "the receiver takes no batches"},
		{applied, k.Applied != nil, "nothing counts what the receiver has applied"},
		{handler, inProcess, "the receiver runs in another process"},
		{restart, k.Restart != nil, "nothing restarts the receiver"},
		{fail, k.Fail != nil, "nothing makes the effects of events fail"},
		{messageID, n&messageID == 0 || k.hasMessageID(), "the event has no messageId"},
	} {
		if n&l.need != 0 && !l.has {
			return l.why
		}
	}
	return ""
}

// Run tests a handler, each check as a subtest. Requests and answers do not touch the network. The
// handler may be called concurrently.
func Run(t *testing.T, h http.Handler, c Config) {
	if c.URL == "" {
		c.URL = "http://receiver.test/hook"
	}
	c.Transport = &handlerTransport{handler: h}
	if c.Event != nil {
		if err := (&kit{Config: c}).checkEvent(); err != nil {
			t.Fatal(err)
		}
	}
	for _, check := range Checks() {
		t.Run(check.Name, func(t *testing.T) {
			switch err := check.Run(t.Context(), c); {
			case errors.Is(err, ErrSkipped):
				t.Skip(err)
			case err != nil:
				t.Error(err)
			}
		})
	}
}
