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

// isFinal reports whether r means that the destination refused the delivery for good, or takes none.
func isFinal(r Reason) bool {
	switch r {
	case ReasonCertificate, ReasonAddress, ReasonRedirect, ReasonRefused, ReasonNoEndpoint:
		return true
	}
	return false
}

// statusOutcome returns the outcome and the reason for an answer with this status. A status outside
// the range 100 to 599 is like a 5xx (RFC 9110, section 15).
func statusOutcome(status int) (Outcome, Reason) {
	switch {
	case 200 <= status && status <= 299:
		return OutcomeDelivered, ""
	case 300 <= status && status <= 399:
		return OutcomePermanent, ReasonRedirect
	case status == 408, status == 425, status == 429:
		return OutcomeRetryable, ReasonThrottled
	case 400 <= status && status <= 499:
		return OutcomePermanent, ReasonRefused
	case 100 <= status && status <= 199:
		// An interim answer in place of the final one, such as 101.
		return OutcomeRetryable, ReasonProtocol
	default:
		return OutcomeRetryable, ReasonServerError
	}
}

// errorOutcome returns the outcome and the reason for a request without a complete answer.
func errorOutcome(err error) (Outcome, Reason) {
	switch {
	// No request was sent, and the next attempt would be refused, too.
	case isA[*addressError](err):
		return OutcomePermanent, ReasonAddress
	case isA[x509.SystemRootsError](err): // this machine cannot read its root certificates
		return OutcomeRetryable, ReasonCertificate
	case isA[*tls.CertificateVerificationError](err), isA[x509.UnknownAuthorityError](err),
		isA[x509.HostnameError](err), isA[x509.CertificateInvalidError](err):
		return OutcomePermanent, ReasonCertificate

	case isA[wire.ProxyError](err): // not the endpoint's fault
		return OutcomeRetryable, ReasonConnection
	case isA[*net.DNSError](err):
		return OutcomeRetryable, ReasonDNS
	case errors.Is(err, wire.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return OutcomeRetryable, ReasonTimeout
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return OutcomeRetryable, ReasonTimeout
	}
	if isA[*net.OpError](err) || isA[syscall.Errno](err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		return OutcomeRetryable, ReasonConnection
	}
	return OutcomeRetryable, ReasonProtocol
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
