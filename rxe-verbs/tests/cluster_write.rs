//! The test from the documentation page about clusters.

use std::time::Duration;

use rxe_verbs::cluster::{Cluster, for_each_seed};
use rxe_verbs::{Access, ConnectOptions, Status};

#[test]
fn a_write_completes_although_the_network_breaks() {
    for_each_seed(0..1000, |seed| {
        let mut cluster = Cluster::new(seed);
        let (client, server) = (cluster.add_host()?, cluster.add_host()?);
        cluster.network().set_faults(&"drop 10%".parse().expect("a plan"))?;

        let (pd, cq) = (client.create_pd()?, client.create_cq(16)?);
        let (their_pd, their_cq) = (server.create_pd()?, server.create_cq(16)?);
        let (qp, their_qp) = (pd.qp(&cq).build()?, their_pd.qp(&their_cq).build()?);
        qp.connect(&their_qp.endpoint(), &ConnectOptions::default())?;
        their_qp.connect(&qp.endpoint(), &ConnectOptions::default())?;
        let memory = their_pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

        let (a, b) = (client.id(), server.id());
        cluster.after(Duration::from_micros(1), move |network| network.partition(&[a], &[b]));
        cluster.after(Duration::from_millis(2), |network| network.heal());
        qp.write_bytes(1, b"hello", memory.remote(0)).post()?;
        assert_eq!(cq.wait_one(Duration::from_secs(9))?.status, Status::Success);
        assert_eq!(memory.to_vec(..5)?, b"hello");
        Ok::<_, rxe_verbs::Error>(())
    });
}
