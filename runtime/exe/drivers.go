package exe

import (
	"context"
	"errors"
	"os"
	"sync"
)

// Drivers are the drivers of both kinds, each compiled when it is first asked for. The zero value has none yet;
// many compilations may use one at the same time.
type Drivers struct {
	kinds [2]struct { // executables, libraries
		mu   sync.Mutex
		dir  string
		made *Driver
	}
}

// Get gives the driver for executables or for shared libraries.
func (d *Drivers) Get(ctx context.Context, shared bool) (*Driver, error) {
	k := &d.kinds[0]
	if shared {
		k = &d.kinds[1]
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.made != nil {
		return k.made, nil
	}
	if k.dir == "" {
		dir, err := os.MkdirTemp("", "reprise-driver-")
		if err != nil {
			return nil, temporaryError(err)
		}
		k.dir = dir
	}
	made, err := CompileDriver(ctx, k.dir, shared)
	if err != nil {
		return nil, err // another may try again: ctx may have ended for this one only
	}
	k.made = made
	return made, nil
}

// Close removes what was compiled. No Driver that Get gave may be in use.
func (d *Drivers) Close() error {
	var errs []error
	for i := range d.kinds {
		k := &d.kinds[i]
		k.mu.Lock()
		if k.dir != "" {
			errs = append(errs, os.RemoveAll(k.dir))
		}
		k.dir, k.made = "", nil
		k.mu.Unlock()
	}
	return errors.Join(errs...)
}
