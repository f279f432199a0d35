package webhooktest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"time"
)

// clientCertificate is the certificate that a client presents, with its key.
var clientCertificate = func() (c struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}) {
	var err error
	if c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &c.key.PublicKey, c.key)
	if err != nil {
		panic(err)
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		panic(err)
	}
	return c
}()
