import glob, os, sys, time, numpy as np
sys.path.insert(0, os.getcwd())
import packager
for f in sorted(glob.glob("build/gpu/*.so")):
    n=os.path.basename(f)[:-3]
    d=np.load(f[:-3]+".npz"); worst=0; shapes=0; err=""
    try:
        b=packager.load(f)
        cases=sorted({k.split("/")[0][2:] for k in d.files if k.startswith("in")})
        for c in cases:
            feeds={k.split("/",1)[1]:d[k] for k in d.files if k.startswith(f"in{c}/")}
            for _ in range(2):
                t=time.perf_counter(); got=b.run(feeds); t=time.perf_counter()-t
            for k in d.files:
                if not k.startswith(f"out{c}/"): continue
                g=got[k.split("/",1)[1]]; w=d[k]
                if g.shape!=w.shape: shapes+=1; err+=f" {c}:{k}:{g.shape}!={w.shape}"; continue
                if w.size:
                    with np.errstate(all="ignore"):
                        same=(g==w)|(np.isnan(g.astype(float))&np.isnan(w.astype(float)))
                        diff=np.where(same,0,np.abs(g.astype(float)-w)); worst=max(worst,float(np.nan_to_num(diff,nan=9e9).max()))
        print(n,"shapes wrong:",shapes,"largest difference",f"{worst:.2e}",f"last run {t*1e3:.2f} ms",err[:200],flush=True)
    except Exception as e: print(n,"FAILED",type(e).__name__,str(e)[:300],flush=True)
