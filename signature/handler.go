package signature

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"
)

// DefaultMaxBody is the MaxBody of a Handler that sets none: 1 MB, counted as
// 1,048,576 bytes. The webhook of a call of the largest size is below it.
const DefaultMaxBody = 1 << 20

// A Scheme is how requests are signed.
type Scheme uint8

const (
	// XSignature is the HMAC-SHA1 of the body in the header X-Signature.
	XSignature Scheme = iota
	// StandardWebhooks is what [VerifyStandard] verifies.
	StandardWebhooks
)

// A Handler passes requests with a good signature on to Next. It answers the
// others itself, with a line of text that says why:
//
//	401  the signature is missing, malformed or wrong, too old or too new
//	400  the body could not be read to its end
//	405  the method is not POST
//	413  the body is over MaxBody
//	500  the handler has no secret, or one that is empty or does not have the
//	     scheme's form: senders try again later, so what they send is not lost
//	     to a mistake in the settings
//
// It reads a body only if there is a secret, and a signature that is well
// formed and of the right time. It serves requests concurrently: do not change
// its fields after the first one.
type Handler struct {
	// Secrets are the shared secrets, any of which may have signed a request:
	// two while one replaces the other.
	Secrets []Secret
	// Scheme is how requests have to be signed. Only one scheme is accepted: to
	// replay a request, an attacker would choose the one that signs no time. Zero
	// is XSignature.
	Scheme Scheme
	// Tolerance is that of VerifyStandard. XSignature signs no time.
	Tolerance time.Duration
	// Next is given the requests that verify. The Body it reads is the bytes
	// that were verified, and ContentLength is how many they are. Required.
	Next http.Handler
	// MaxBody is the size in bytes of the largest body that is read; a body
	// is in memory while it is verified and handled. Zero or less means
	// DefaultMaxBody.
	MaxBody int64
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "the method is not POST", http.StatusMethodNotAllowed)
		return
	}
	// A request without a well-formed signature is refused before memory is
	// allocated for its body.
	verify, err := h.verifier(r.Header)
	if err != nil {
		refuse(w, err)
		return
	}

	limit := h.MaxBody
	if limit <= 0 {
		limit = DefaultMaxBody
	}
	if r.ContentLength > limit {
		http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
		return
	}
	// Content-Length is only the client's word: before any byte has come, at most the
	// size of the largest call is allocated.
	size := min(max(r.ContentLength, 0), 32<<10)
	buf := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "the body could not be read", http.StatusBadRequest)
		return
	}
	body := buf.Bytes()
	if err := verify(body); err != nil {
		refuse(w, err)
		return
	}

	verified := r.WithContext(r.Context())
	verified.Body = io.NopCloser(bytes.NewReader(body))
	verified.ContentLength = int64(len(body))
	verified.TransferEncoding = nil
	h.Next.ServeHTTP(w, verified)
}

// verifier returns a function that checks a body against the signature in header,
// or the error that any body would get.
func (h *Handler) verifier(header http.Header) (verify func(body []byte) error, err error) {
	switch h.Scheme {
	case XSignature:
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

var errScheme = errors.New("signature: unknown scheme")

func xSignatureVerifier(header http.Header, secrets []Secret) (verify func(body []byte) error, err error) {
	var value string
	switch values := header.Values(Header); len(values) {
	case 0:
	case 1:
		value = values[0]
	default:
		// Another part of the receiver may look at another one of them, so none
		// is accepted.
		value = "several"
	}
	return func(body []byte) error { return Verify(body, value, secrets...) }, check(value, secrets)
}

// refusals are the answers to errors of Verify and VerifyStandard.
var refusals = []struct {
	err    error
	status int
	text   string
}{
	{ErrNoSecret, http.StatusInternalServerError, "no secret is configured"},
	{ErrSecretFormat, http.StatusInternalServerError, "a secret is malformed"},
	{errScheme, http.StatusInternalServerError, "the scheme is unknown"},
	{ErrTooOld, http.StatusUnauthorized, "the signature is too old"},
	{ErrTooNew, http.StatusUnauthorized, "the signature is too new"},
	{ErrMissing, http.StatusUnauthorized, "the signature is missing"},
	{ErrMalformed, http.StatusUnauthorized, "the signature is malformed"},
}

// refuse answers with an error of Verify or VerifyStandard.
func refuse(w http.ResponseWriter, err error) {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			http.Error(w, r.text, r.status)
			return
		}
	}
	http.Error(w, "the signature does not match", http.StatusUnauthorized)
}
