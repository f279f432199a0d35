package signature

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// DefaultMaxBody is the MaxBody of a Handler that sets none: 1 MB, counted as
// 1,048,576 bytes. The webhook of a call of the largest size is below it.
const DefaultMaxBody = 1 << 20

// A Handler passes requests with a good signature on to Next. It answers the
// others itself, with a line of text that says why:
//
//	401  the signature is missing, malformed or wrong
//	400  the body could not be read to its end
//	405  the method is not POST
//	413  the body is over MaxBody
//	500  the handler has no secret, or an empty one: senders try again later,
//	     so what they send is not lost to a mistake in the settings
//
// It reads a body only if there is a secret and one well-formed signature. Its
// fields are not changed once it serves.
type Handler struct {
	// Secrets are the shared secrets, any of which may have signed a request:
	// two while one replaces the other.
	Secrets []Secret
	// Next is given the requests that verify. The Body it reads is the bytes
	// that were verified, and ContentLength is how many they are.
	Next http.Handler
	// MaxBody is the size in bytes of the largest body that is read; a body
	// is in memory while it is verified and handled. Zero means
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
	var header string
	switch values := r.Header.Values(Header); len(values) {
	case 0:
	case 1:
		header = values[0]
	default:
		// Which of them another part of the receiver would look at is not
		// known, so none is good.
		header = "several"
	}
	// Who does not even claim a signature is not given memory for a body.
	if err := check(header, h.Secrets); err != nil {
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
	// What is said to come is not believed beyond the size of a usual call.
	said := min(max(r.ContentLength, 0), 32<<10)
	buf := bytes.NewBuffer(make([]byte, 0, said+bytes.MinRead))
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
	if err := Verify(body, header, h.Secrets...); err != nil {
		refuse(w, err)
		return
	}

	verified := r.WithContext(r.Context())
	verified.Body = io.NopCloser(bytes.NewReader(body))
	verified.ContentLength = int64(len(body))
	verified.TransferEncoding = nil
	h.Next.ServeHTTP(w, verified)
}

// refuse answers with an error of Verify.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ErrNoSecret):
		http.Error(w, "no secret is configured", http.StatusInternalServerError)
	case errors.Is(err, ErrMissing):
		http.Error(w, "the signature is missing", http.StatusUnauthorized)
	case errors.Is(err, ErrMalformed):
		http.Error(w, "the signature is malformed", http.StatusUnauthorized)
	default:
		http.Error(w, "the signature does not match", http.StatusUnauthorized)
	}
}
