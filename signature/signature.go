// Package signature signs webhook bodies and checks their signatures.
//
// A receiver puts a [Handler] in front of the code that reads webhooks:
//
//	http.Handle("/hook", &signature.Handler{
//		Secrets: []signature.Secret{secret},
//		Next:    http.HandlerFunc(receive),
//	})
//
// Alternatively, it calls [Verify] with a body and the value of its [Header].
//
// The signature is the HMAC-SHA1 of the body, keyed with the shared secret, in lower-case
// hex. The public webhook documentation computes it over JSON.stringify(body) of the
// parsed body. If ECMAScript parses a body of Hookferry and stringifies it, the result
// has exactly the same bytes. So a receiver may verify the received bytes or the result
// of JSON.stringify. This package verifies the received bytes.
//
// # Standard Webhooks
//
// A sender may add the headers of Standard Webhooks, version 1
// (https://www.standardwebhooks.com). Their signature also covers the message's id and the
// time of the attempt. So a captured request becomes useless after some minutes.
// [VerifyStandard] verifies these headers, and so does a Handler with the Scheme
// [StandardWebhooks]. The specification lists libraries for other languages.
//
// # Replacing a secret
//
// X-Signature holds a single signature, made with one secret. To replace the secret, the
// receiver first accepts the new secret in addition to the old one. Then the sender changes
// to the new one, and finally the receiver removes the old one. With Standard Webhooks the
// sender signs with both secrets for a while, and the receiver changes during that time.
package signature

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"hash"
	"sync"
)

// Header is the name of the request header that carries the signature.
const Header = "X-Signature"

// size is the length of a signature: two hex digits for each byte of a SHA-1.
const size = 2 * sha1.Size

// The errors of this package.
var (
	// ErrNoSecret: there is no secret to sign or verify with, or a secret is empty. Anyone
	// can sign with an empty secret.
	ErrNoSecret = errors.New("signature: no secret")
	// ErrMissing: the request has no signature.
	ErrMissing = errors.New("signature: missing")
	// ErrMalformed: the signature is not 40 lower-case hex digits, or a header of Standard
	// Webhooks does not have the required form.
	ErrMalformed = errors.New("signature: malformed")
	// ErrMismatch: the signature belongs to another body or was made with another secret.
	ErrMismatch = errors.New("signature: mismatch")

	// ErrTooOld: the request was signed longer ago than the tolerance. Somebody may have
	// captured it and sent it again.
	ErrTooOld = errors.New("signature: too old")
	// ErrTooNew: the time of the signature is further in the future than the tolerance.
	ErrTooNew = errors.New("signature: too new")
	// ErrSecretFormat: a secret does not have one of the forms of Standard Webhooks. A
	// shared secret is "whsec_" and the base64 of 24 to 64 bytes. An Ed25519 key is "whsk_"
	// and base64 to sign, or "whpk_" and base64 to verify.
	ErrSecretFormat = errors.New("signature: the secret is not whsec_ and base64 of 24 to 64 bytes, " +
		"nor an Ed25519 key: whsk_ and base64 to sign, whpk_ and base64 to verify")
)

// Sign returns the signature of body: 40 lower-case hex digits. The only error
// is [ErrNoSecret].
func Sign(body []byte, secret Secret) (string, error) {
	if secret == "" {
		return "", ErrNoSecret
	}
	var buf [size]byte
	return string(appendSignature(buf[:0], hmac.New(sha1.New, []byte(secret)), body)), nil
}

// Verify returns nil if header is the signature of body made with any of the secrets. There
// are two secrets while a secret is being replaced: the new one and the old one.
//
// The error is [ErrNoSecret] if there is no secret or any secret is empty; [ErrMissing] if
// header is empty; [ErrMalformed] if header is anything but 40 lower-case hex digits;
// otherwise [ErrMismatch]. The time that Verify takes does not reveal how much of a
// signature is correct.
func Verify(body []byte, header string, secrets ...Secret) error {
	if err := check(header, secrets); err != nil {
		return err
	}
	var buf [size]byte
	match := 0
	for _, s := range secrets {
		want := appendSignature(buf[:0], hmac.New(sha1.New, []byte(s)), body)
		match |= subtle.ConstantTimeCompare(want, []byte(header))
	}
	if match == 0 {
		return ErrMismatch
	}
	return nil
}

// check returns the errors of Verify that do not depend on the body.
func check(header string, secrets []Secret) error {
	if len(secrets) == 0 {
		return ErrNoSecret
	}
	for _, s := range secrets {
		if s == "" {
			return ErrNoSecret
		}
	}
	if header == "" {
		return ErrMissing
	}
	if !wellFormed(header) {
		return ErrMalformed
	}
	return nil
}

func wellFormed(header string) bool {
	if len(header) != size {
		return false
	}
	for i := range len(header) {
		c := header[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// A Signer signs many bodies with one secret. It prepares the key only once. Its methods
// may be called concurrently.
type Signer struct {
	states sync.Pool // pool of *state
}

// A state is a keyed HMAC with a buffer for its sum. States are pooled, so that signing
// allocates nothing.
type state struct {
	mac hash.Hash
	sum [sha1.Size]byte
}

// NewSigner returns a Signer for secret. The only error is [ErrNoSecret].
func NewSigner(secret Secret) (*Signer, error) {
	if secret == "" {
		return nil, ErrNoSecret
	}
	key := []byte(secret)
	s := &Signer{}
	s.states.New = func() any { return &state{mac: hmac.New(sha1.New, key)} }
	return s, nil
}

// Append appends the signature of body, 40 lower-case hex digits, to dst.
func (s *Signer) Append(dst, body []byte) []byte {
	st := s.states.Get().(*state)
	defer s.states.Put(st)
	st.mac.Reset()
	st.mac.Write(body)
	return hex.AppendEncode(dst, st.mac.Sum(st.sum[:0]))
}

func appendSignature(dst []byte, mac hash.Hash, body []byte) []byte {
	var sum [sha1.Size]byte
	mac.Write(body)
	return hex.AppendEncode(dst, mac.Sum(sum[:0]))
}
