package cpu

import (
	"crypto/sha256"
	"sync"
)

// Objects keeps compiled objects by the text of their module, so that programs that share kernels (one
// model at several budgets) compile them once. The zero value is empty. Several units may use one at the
// same time; what they give is the same with it and without.
type Objects struct {
	mu     sync.Mutex
	byText map[[sha256.Size]byte][]byte
}

// find gives the object of a module's text, nil where there is none. A nil receiver keeps nothing.
func (o *Objects) find(key [sha256.Size]byte) []byte {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byText[key]
}

func (o *Objects) keep(key [sha256.Size]byte, object []byte) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byText == nil {
		o.byText = map[[sha256.Size]byte][]byte{}
	}
	o.byText[key] = object
}
