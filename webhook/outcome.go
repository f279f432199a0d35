package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/hookferry/analytics/webhook/internal/wire"
)

// An outcome is what a request leads to.
type outcome uint8

const (
	delivered outcome = iota
	retryable
	permanent
)

// errAttemptTimeout is the cause of a request cut off at Config.Timeout.
var errAttemptTimeout = wire.ErrTimeout

// errStopped is the cause of a request cut off by the end of the forwarder.
var errStopped = errors.New("webhook: stopped")

// statusOutcome says what an answer with a status leads to. A status of no
// known class is treated as 5xx (RFC 9110, section 15).
func statusOutcome(status int) (outcome, Reason) {
	switch {
	case 200 <= status && status <= 299:
		return delivered, ""
	case 300 <= status && status <= 399:
		return permanent, ReasonRedirect
	case status == 408, status == 425, status == 429:
		return retryable, ReasonThrottled
	case 400 <= status && status <= 499:
		return permanent, ReasonRefused
	case 100 <= status && status <= 199:
		// An interim answer where the final one should be, such as 101.
		return retryable, ReasonProtocol
	default:
		return retryable, ReasonServerError
	}
}

// errorOutcome says what a request that failed without a whole answer leads
// to.
func errorOutcome(err error) (outcome, Reason) {
	// What was refused before a request went out, and would be again.
	if _, ok := asError[*AddressError](err); ok {
		return permanent, ReasonAddress
	}
	if _, ok := asError[x509.SystemRootsError](err); ok {
		return retryable, ReasonCertificate // this machine cannot read its authorities
	}
	if isCertificateError(err) {
		return permanent, ReasonCertificate
	}

	if _, ok := asError[wire.ProxyError](err); ok {
		return retryable, ReasonConnection // not the endpoint's fault
	}
	if _, ok := asError[*net.DNSError](err); ok {
		return retryable, ReasonDNS
	}
	if errors.Is(err, errAttemptTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return retryable, ReasonTimeout
	}
	if ne, ok := asError[net.Error](err); ok && ne.Timeout() {
		return retryable, ReasonTimeout
	}
	_, isOp := asError[*net.OpError](err)
	_, isErrno := asError[syscall.Errno](err)
	if isOp || isErrno || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return retryable, ReasonConnection
	}
	return retryable, ReasonProtocol
}

// isCertificateError reports whether err says that the endpoint's certificate
// does not verify: signed by itself or by an unknown authority, expired, or
// for another host.
func isCertificateError(err error) bool {
	if _, ok := asError[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := asError[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := asError[x509.HostnameError](err); ok {
		return true
	}
	_, ok := asError[x509.CertificateInvalidError](err)
	return ok
}

func asError[E error](err error) (E, bool) {
	var e E
	ok := errors.As(err, &e)
	return e, ok
}
