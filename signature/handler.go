package signature

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultMaxBody is the limit of a Handler whose MaxBody is not set: 1 MB, which is
// 1,048,576 bytes. The webhook of the largest possible call is smaller.
const DefaultMaxBody = 1 << 20

// A Scheme is the way in which requests are signed.
type Scheme uint8

const (
	// XSignature is the HMAC-SHA1 of the body in the header X-Signature.
	XSignature Scheme = iota
	// StandardWebhooks is the scheme that [VerifyStandard] verifies.
	StandardWebhooks
)

// A Handler passes requests with a valid signature on to Next. It answers all other
// requests itself, with a line of text that gives the reason:
//
//	401  the signature is missing, malformed or wrong, too old or too new
//	400  the body could not be read to its end
//	405  the method is not POST
//	413  the body is over MaxBody
//	500  the handler has no secret, or a secret is empty or does not have the
//	     form that the scheme requires. Senders try again later, so a mistake
//	     in the settings loses no requests. See Check
//
// It reads a body only if there is a secret, and a signature that is well formed and neither
// too old nor too new. It serves requests concurrently, so do not change its fields after
// the first request.
type Handler struct {
	// Secrets are the shared secrets. Any of them may have signed a request. There are two
	// while a secret is being replaced.
	Secrets []Secret
	// Scheme is the scheme with which requests must be signed. A Handler accepts only one
	// scheme. If it accepted both, an attacker could replay a request with the scheme that
	// signs no time. Zero means XSignature.
	Scheme Scheme
	// Tolerance is the tolerance of VerifyStandard. XSignature has none, because it signs
	// no time.
	Tolerance time.Duration
	// Next gets the verified requests. The Body of such a request yields the verified
	// bytes, and its ContentLength is their number. Required.
	Next http.Handler
	// MaxBody is the maximum size of a body in bytes. A body is held in memory while it is
	// verified and handled. Zero or less means DefaultMaxBody.
	MaxBody int64
	// Logger gets a line for requests that the Handler does not pass on, with the status, the reason
	// and the webhook-id, if that is well formed. A line has neither a secret nor a body. There is one
	// each ten seconds at most, with the number of such requests since the line before. Nil means no
	// logs.
	Logger *slog.Logger

	logged  atomic.Int64 // the time of the last line, in nanoseconds since 1970
	refused atomic.Int64 // requests since the last line
}

// Check returns the error for which a Handler with these Secrets and this Scheme answers 500 to every
// request. Call it when the program starts.
func (h *Handler) Check() error {
	if _, err := h.verifier(http.Header{}); !errors.Is(err, ErrMissing) {
		return err
	}
	return nil
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		h.refuse(w, r, http.StatusMethodNotAllowed, "the method is not POST")
		return
	}
	// Refuse a request without a well-formed signature before allocating memory for its
	// body.
	verify, err := h.verifier(r.Header)
	if err != nil {
		status, text := refusal(err)
		h.refuse(w, r, status, text)
		return
	}

	limit := h.MaxBody
	if limit <= 0 {
		limit = DefaultMaxBody
	}
	if r.ContentLength > limit {
		h.refuse(w, r, http.StatusRequestEntityTooLarge, "the body is too large")
		return
	}
	// Content-Length is only a claim of the client. So at most the size of the largest call
	// is allocated before any byte has arrived.
	size := min(max(r.ContentLength, 0), 32<<10)
	buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			h.refuse(w, r, http.StatusRequestEntityTooLarge, "the body is too large")
			return
		}
		h.refuse(w, r, http.StatusBadRequest, "the body could not be read")
		return
	}
	body := buf.Bytes()
	if err := verify(body); err != nil {
		status, text := refusal(err)
		h.refuse(w, r, status, text)
		return
	}

	verified := r.WithContext(r.Context())
	verified.Body = io.NopCloser(bytes.NewReader(body))
	verified.ContentLength = int64(len(body))
	verified.TransferEncoding = nil
	h.Next.ServeHTTP(w, verified)
}

// verifier returns a function that checks a body against the signature in header. It
// returns an error if the header alone shows that the request cannot be valid, whatever
// its body.
func (h *Handler) verifier(header http.Header) (verify func(body []byte) error, err error) {
	switch h.Scheme {
	case XSignature:
		for _, s := range h.Secrets {
			if p := s.Reveal(); strings.HasPrefix(p, sharedPrefix) || strings.HasPrefix(p, privatePrefix) || strings.HasPrefix(p, publicPrefix) {
				return nil, errStandardSecret
			}
		}
		return xSignatureVerifier(header, h.Secrets)
	case StandardWebhooks:
		keys, err := standardKeys(h.Secrets, false)
		if err != nil {
			return nil, err
		}
		headers, err := parseStandardHeaders(header, h.Tolerance, time.Now())
		return func(body []byte) error { return headers.verify(body, keys) }, err
	default:
		return nil, errScheme
	}
}

var (
	errScheme         = errors.New("signature: unknown scheme")
	errStandardSecret = errors.New("signature: a secret begins with whsec_, whpk_ or whsk_: set Scheme to StandardWebhooks")
)

func xSignatureVerifier(header http.Header, secrets []Secret) (verify func(body []byte) error, err error) {
	var value string
	switch values := header.Values(Header); len(values) {
	case 0:
	case 1:
		value = values[0]
	default:
		// Refuse a request with several signature headers, because another part of the
		// receiver may read a different header than this code. The value "several" is
		// malformed, so the check of the signature refuses the request.
		value = "several"
	}
	return func(body []byte) error { return Verify(body, value, secrets...) }, check(value, secrets)
}

// refusals map errors of Verify and VerifyStandard to answers.
var refusals = []struct {
	err    error
	status int
	text   string
}{
	{ErrNoSecret, http.StatusInternalServerError, "no secret is configured"},
	{ErrSecretFormat, http.StatusInternalServerError, "a secret is malformed"},
	{errStandardSecret, http.StatusInternalServerError, "a secret begins with whsec_, whpk_ or whsk_: set Scheme to StandardWebhooks"},
	{errScheme, http.StatusInternalServerError, "the scheme is unknown"},
	{ErrTooOld, http.StatusUnauthorized, "the signature is too old"},
	{ErrTooNew, http.StatusUnauthorized, "the signature is too new"},
	{ErrMissing, http.StatusUnauthorized, "the signature is missing"},
	{ErrMalformed, http.StatusUnauthorized, "the signature is malformed"},
}

// refusal returns the answer to a request that failed with an error of verifier, Verify or
// VerifyStandard.
func refusal(err error) (status int, text string) {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.status, r.text
		}
	}
	return http.StatusUnauthorized, "the signature does not match"
}

// logEvery is the time between two lines of a Handler's log. Anybody can send what it refuses.
const logEvery = 10 * time.Second

// refuse answers a request that is not passed on, and logs that.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	http.Error(w, text, status)
	if h.Logger == nil {
		return
	}
	h.refused.Add(1)
	now, last := time.Now(), h.logged.Load()
	if now.Sub(time.Unix(0, last)).Abs() < logEvery || !h.logged.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	means := "refused a webhook; if it is genuine, mend the cause and ask its sender to retry its dead letters"
	if status == http.StatusInternalServerError {
		means = "refused a webhook, because the secrets of this receiver are not set as they should be; its sender tries again"
	}
	id := r.Header.Get(StandardID)
	if !wellFormedID(id) {
		id = ""
	}
	h.Logger.Warn(means, "status", status, "reason", text, "id", id, "requests", h.refused.Swap(0))
}
